package org.apache.hadoop.fs;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which asks Java and not a process for the mode of a file and for a symbolic link.
 *
 * Hadoop starts chmod for each file that it writes, and readlink up to eight times for each that it renames. A JVM with
 * hundreds of open files takes 5 ms for each such process, and a batch writes and renames dozens of files. Nothing else
 * differs: what is extended below is replaced by the class that the JVM uses for local files, which may be one of Hive.
 */
public class DagsterCkptLocalFiles extends LocalFileSystem {
    public DagsterCkptLocalFiles() {
        fs = new Raw();
    }

    static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws IOException {
            java.nio.file.Path file = pathToFile(path).toPath();
            int mode = permission.toShort();
            if (Files.isDirectory(file)) {
                // As chmod: what makes the files of a directory belong to its group stays.
                mode |= ((Integer) Files.getAttribute(file, "unix:mode")).intValue() & 06000;
            }
            Files.setAttribute(file, "unix:mode", Integer.valueOf(mode));
        }

        public FileStatus getFileLinkStatus(Path path) throws IOException {
            if (Files.isSymbolicLink(pathToFile(path).toPath())) {
                return super.getFileLinkStatus(path);
            }
            return getFileStatus(path);
        }
    }

    static class RawContext extends DelegateToFileSystem {
        RawContext(Configuration conf) throws Exception {
            super(FsConstants.LOCAL_FS_URI, new Raw(), conf, FsConstants.LOCAL_FS_URI.getScheme(), false);
        }

        public FsServerDefaults getServerDefaults(Path path) throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        public FsServerDefaults getServerDefaults() throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        public int getUriDefaultPort() {
            return -1;
        }

        public boolean isValidName(String name) {
            return true;
        }
    }

    /** The same for Hadoop's newer interface, by which Spark writes the files of a checkpoint location. */
    public static class Context extends ChecksumFs {
        public Context(URI uri, Configuration conf) throws Exception {
            super(new RawContext(conf));
        }
    }
}
