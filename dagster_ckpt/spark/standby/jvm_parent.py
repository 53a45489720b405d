"""What remains of a keeper whose JVM was adopted: the parent of the JVM, which alone learns how the JVM ends.

    python -I -S jvm_parent.py PID SOCKET

The run that has the JVM reads the exit code from the socket. This program loads no library, because it stays for as
long as the JVM.
"""

import os
import sys


def main() -> None:
    """Wait for the JVM, and tell its exit code, negative for a signal as in :mod:`subprocess`."""
    _, status = os.waitpid(int(sys.argv[1]), 0)
    try:  # noqa: SIM105 - contextlib is a library
        os.write(int(sys.argv[2]), str(os.waitstatus_to_exitcode(status)).encode())
    except OSError:  # the run has ended, and its JVM with it
        pass


if __name__ == "__main__":
    main()
