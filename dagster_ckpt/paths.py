"""What a path or URL means. Only this module takes paths and URLs apart.

**Names are literal**, as for Flink and Hadoop (``Path(String)``): after an optional ``scheme:`` and ``//authority``,
every character belongs to the name, also ``%20``, ``#`` and ``?``. So two different names never mean one place. Only
repeated slashes and a slash at the end count for nothing, and ``..`` and links lead where the operating system says.
Spark's own records hold the other form, escaped URIs: :func:`unescaped` gives the name of such a URI.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.shown_text import redacted

__all__ = [
    "LONGEST",
    "Location",
    "check_possible",
    "hadoop_path",
    "is_same_place",
    "local_path",
    "refuse_former_meaning",
    "split_location",
    "unescaped",
]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
#: A bucket or a host, perhaps after a user, perhaps with a port: printable ASCII without brackets.
_AUTHORITY = re.compile(r"[!-Z\\^-~]*")
_GREATEST_PORT = 65535
_LONGEST_PORT = 5
#: Bytes of one component of a path: the limit of Linux.
_LONGEST_COMPONENT = 255
#: Bytes of a path or a name: the other that it is joined to has the rest of Linux's 4096.
LONGEST = 3072


@dataclass(frozen=True, slots=True)
class Location:
    """A path or URL, taken apart.

    Attributes:
        scheme: in lower case; empty for a plain path.
        authority: a bucket, a host; empty for a path of this machine.
        path: all the rest, as written.
    """

    scheme: str
    authority: str
    path: str

    @property
    def is_local(self) -> bool:
        """Whether this is a path of this machine."""
        return self.scheme in {"", "file"}

    @property
    def shown(self) -> str:
        """The URL without its user, query and fragment, which may be secret."""
        host = self.authority.rpartition("@")[2]
        return f"{self.scheme}://{host}{re.split('[?#]', self.path, maxsplit=1)[0]}"


def split_location(text: str) -> Location:
    """Take a path or URL apart.

    Raises:
        InvalidConfiguration: ``text`` is neither; or a ``file:`` URL names a host or a relative path. The error quotes
            no secret.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _unreadable(text, type(error).__name__) from None
    if text != text.lstrip():
        raise _unreadable(text, "it begins with white space")
    found = _SCHEME.match(text)
    scheme, rest = (found[1].lower(), text[found.end() :]) if found else ("", text)
    authority = ""
    if scheme and rest.startswith("//"):
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
        port = authority.rpartition("@")[2].partition(":")[2] or "0"
        is_port = len(port) <= _LONGEST_PORT and port.isdigit() and int(port) <= _GREATEST_PORT
        if not (_AUTHORITY.fullmatch(authority) and is_port):
            raise _unreadable(text, "no host or bucket is called so")
    if scheme == "file" and (authority or not rest.startswith("/")):
        meant = redacted(f"{authority.rpartition('@')[2]}{rest}")[:160]
        other = "a host" if authority else "a relative one"
        raise InvalidConfiguration(
            f"A file: URL names an absolute path of this machine; this URL names {other}.",
            hint=f"Did you forget a slash? Write file:///{meant} or /{meant}.{_formerly(text, None)}",
        )
    return Location(scheme, authority, rest)


def local_path(text: str) -> Path:
    """The absolute path of this machine that a ``file:`` URL or a path means; the path may be relative or have a ``~``.

    ``..`` is resolved here, as the operating system does: behind a link, Hadoop would go elsewhere.

    Raises:
        InvalidConfiguration: ``text`` is a URL of another kind, no file can have this path, the user after ``~`` does
            not exist, or the path is relative and the working directory of this process is gone.
    """
    location = split_location(text)
    if not location.is_local:
        raise InvalidConfiguration(
            f"{location.shown[:160]!r} is no path of this machine.",
            hint="Name a directory by its absolute path; write ./ before a relative path that has a colon in it.",
        )
    path = location.path
    try:
        check_possible(path)
        if not location.scheme and path.startswith("~"):
            path = str(Path(path).expanduser())
        found = Path(f"/{path.lstrip('/')}" if path.startswith("/") else path).absolute()
        if ".." in found.parts:
            found = Path(os.path.realpath(found))
        check_possible(str(found))
    except (RuntimeError, ValueError) as error:
        raise InvalidConfiguration(
            f"No directory can have the path {path[:160]!r}: {error}.", hint="Name a directory by its absolute path."
        ) from error
    except OSError as error:
        raise InvalidConfiguration(
            f"The path {path[:160]!r} begins at the working directory of this process, which nobody can say: "
            f"{error.strerror}.",
            hint="Name a directory by its absolute path, or go to a directory that exists.",
        ) from error
    return found


def hadoop_path(path: Path) -> str:
    """A path of this machine as Hadoop takes it, whatever the default file system of Hadoop's configuration is."""
    return f"file:{path}"


def is_same_place(one: str, other: str) -> bool:
    """Whether two recorded paths or URLs are one place; on this machine, links and ``..`` are followed."""
    if one == other or not (one.startswith("/") and other.startswith("/")):
        return one == other
    here, there = Path(one), Path(other)
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no such path, links in a circle, no possible path
        return here.resolve() == there.resolve() or here.samefile(there)
    return False


def unescaped(uri: str) -> str:
    """The name that an escaped URI stands for: Spark writes ``file:///a%20b`` for ``file:///a b``."""
    return os.fsdecode(unquote_to_bytes(uri.encode(errors="surrogatepass")))


def refuse_former_meaning(text: str, path: Path) -> None:
    """Refuse a URL that names nothing yet and that earlier releases took for a directory with something in it.

    Args:
        text: the path or URL.
        path: what it means.

    Raises:
        InvalidConfiguration: see above.
    """
    formerly = _formerly(text, path)
    if formerly and not _is_there(path):
        raise InvalidConfiguration(
            f"{text!r} names {str(path)!r}, which does not exist: %, # and ? in a file: URL belong to the name.",
            hint=f"{formerly.strip()} Name that directory by its path, without file:; or, to begin in {str(path)!r}, "
            "make that directory first.",
        )


def _is_there(path: Path) -> bool:
    """Whether ``path`` exists, as far as this process may look: who opens the path is told what was denied."""
    try:
        return path.exists()
    except OSError:
        return True


def _formerly(text: str, path: Path | None) -> str:
    """A sentence on what a ``file:`` URL meant up to release 0.1.0, if something is there; else nothing.

    Those releases took it for a web address: ``%20`` for a space, ``#`` and ``?`` for the end of the path, and a host
    for a directory of the working directory.
    """
    if text[:5].lower() != "file:":
        return ""
    try:
        parts = urlsplit(text)
        before = Path(unquote(parts.netloc + parts.path)).expanduser().absolute()
        if before == path or before == Path(before.anchor) or not (before.is_file() or any(before.iterdir())):
            return ""
    except (OSError, RuntimeError, ValueError):
        return ""
    return f" Up to release 0.1.0 this URL was taken for {str(before)!r}, where something is."


def check_possible(path: str) -> list[bytes]:
    """The components of ``path``, if the operating system can have a file there.

    Raises:
        ValueError: ``path`` contains a NUL, is not valid UTF-8, or is too long.
    """
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{path[:80]!r} is no name of a file: it is not valid UTF-8") from None
    components = encoded.split(b"/")
    if len(encoded) > LONGEST or any(len(component) > _LONGEST_COMPONENT for component in components):
        raise ValueError(f"{path[:80]!r}... is too long for the name of a file")
    if b"\0" in encoded:
        raise ValueError(f"{path!r} has a NUL in it, as no name of a file has")
    return components


def _unreadable(text: str, why: str) -> InvalidConfiguration:
    kind = text.partition("://")[0] if re.match(r"[A-Za-z][A-Za-z0-9+.-]{0,15}://", text) else "path"
    return InvalidConfiguration(
        f"The checkpoint path, a {kind} of {len(text)} characters, cannot be read as a path or URL ({why}).",
        hint="Use an absolute path, or a URL such as s3://bucket/directory; look for brackets, colons and characters "
        "that are no text.",
    )
