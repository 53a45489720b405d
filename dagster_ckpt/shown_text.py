"""Makes text from elsewhere safe to show: removes secrets, and escapes what a terminal would obey.

Such text comes from records, from URLs, and from client libraries.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

__all__ = [
    "HIDDEN",
    "counted",
    "first_line",
    "first_line_of_java",
    "in_one_line",
    "path_option",
    "printable",
    "redacted",
    "secrets_of",
    "shortened",
    "shown_cause",
    "without_secrets",
]

#: Replaces a secret.
HIDDEN = "***"

#: Text before the host of a URL: a user, perhaps with a password.
_USER = re.compile(r"(?P<scheme>(?:[A-Za-z][A-Za-z0-9+.-]{0,30}:)?)//(?P<user>[^/?#\s]*)@")
#: How `urlsplit` quotes an invalid host.
_NETLOC = re.compile(r"(?P<is>\bnetloc ['\"])\S*@")
#: Schemes whose text before the host is a container, not a credential.
_CONTAINER = re.compile(r"(?:abfss?|az|wasbs?):", re.IGNORECASE)
#: A parameter of a query or fragment; also a parameter alone, such as a token that was cut off its URL.
_PARAMETER = re.compile(r"(?P<lead>[?&;#]|(?<![^\s\"'(,]))(?P<name>[^=&?;#\s\"'(,]+)=(?=[^&\s])")
_VALUE = re.compile(r"[^&\s]+")
_SECRET_NAME = re.compile(
    r"auth(?!or)|credential|passw|pwd|secret|signature|token|upload_id|(?:access|account|api|private|shared)[-_]?key"
    r"|awsaccesskeyid|googleaccessid|connection_?string",
    re.IGNORECASE,
)
#: Names that mean a secret only in a query, among them all names of a shared access signature.
_IN_A_QUERY = frozenset(("key", "se", "si", "sig", "sip", "skoid", "sktid", "sp", "spr", "sr", "srt", "ss", "st", "sv"))
#: Names that mean a secret outside a query too, where other ``name=value`` text may be a partition directory.
_ALONE = frozenset(("access_token", "password", "secret", "sig", "signature", "token"))
#: Characters that end a sentence or a quotation, and are not part of a secret.
_END = "\"'>)]},.:;"
_HEADER = re.compile(
    r"(?P<name>(?:proxy-)?authorization|x-amz-security-token|x-ms-copy-source-authorization)"
    r"(?P<is>[\"']?\s*[:=]\s*[\"']?)[^\"'\r\n]+",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(?P<name>Bearer|SharedKey(?:Lite)?)\s+[A-Za-z0-9._~+/=:-]{8,}")
#: Keys of connection strings, of JSON, and of Python's text of a mapping.
_NAMED = re.compile(
    r"(?P<name>\b(?:AccountKey|SharedAccessKey|SharedAccessSignature|account_key|sas_token|client_secret|access_token"
    r"|refresh_token|id_token|(?:aws_)?secret_access_key|(?:aws_)?session_token|private_key|connection_string|password))"
    r"(?P<is>[\"']?\s*[:=]\s*)(?!\*\*\*)(?:\"(?:[^\"\\]|\\.)+\"?|'(?:[^'\\]|\\.)+'?|[^\s\"',;]+)",
    re.IGNORECASE,
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
#: Options of a connection whose values are secrets.
_SECRET_OPTION = re.compile(
    r"connection_?string|credential|passw|pwd|sas|secret|token|(?:access|account|api|private|shared)[-_.]?key",
    re.IGNORECASE,
)
#: Options whose value may be a secret or the place of a secret.
_MAY_BE_A_PLACE = re.compile(r"token|credential", re.IGNORECASE)
_PLACE = re.compile(r"[/~.].*|.*\.json|[a-z]+://.*|anon|browser|cache|cloud|google_default", re.IGNORECASE)
#: Fewest characters of a secret: shorter values are ordinary words, which would vanish from every sentence.
_SHORTEST = 6


def path_option(url: str) -> str:
    """What names a storage in a command of ``dagster-ckpt``, as a shell takes it."""
    return f"--path {shlex.quote(url)}"


def counted(count: int, noun: str) -> str:
    """A number of things, such as ``1 file`` and ``1,000 files``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def shortened(names: Sequence[str], most: int = 20, noun: str = "") -> list[str]:
    """The first ``most`` names, the last of which tells how many more there are: ``c.csv and 1 more``."""
    left = len(names) - most
    if left <= 0:
        return list(names)
    return [*names[: most - 1], f"{names[most - 1]} and {left} more{noun and f' {noun}'}"]


def redacted(text: str, values: Iterable[str] = ()) -> str:
    """Text without credentials: users of URLs, secret parameters of queries, headers, account keys, private keys.

    Args:
        text: the text to show.
        values: known secrets, removed wherever they occur.
    """
    for value in sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _USER.sub(_without_user, text)
    text = _NETLOC.sub(rf"\g<is>{HIDDEN}@", text)
    text = _HEADER.sub(rf"\g<name>\g<is>{HIDDEN}", text)
    text = _SCHEME.sub(rf"\g<name> {HIDDEN}", text)
    text = _NAMED.sub(rf"\g<name>\g<is>{HIDDEN}", text)
    return _without_values(text)


def secrets_of(options: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """The dotted name and the value of each secret that is written out in the options of a connection."""
    for name, value in options.items():
        full = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from secrets_of(value, f"{full}.")
        elif type(value) is str and len(value) >= _SHORTEST and _is_secret(name, value):  # no EnvVar
            yield full, value


def _is_secret(option: str, value: str) -> bool:
    is_place = _MAY_BE_A_PLACE.search(option) and _PLACE.fullmatch(value)
    return _SECRET_OPTION.search(option) is not None and not is_place


def printable(text: str) -> str:
    """Text with control and other unprintable characters escaped; lines stay lines."""
    return "\n".join(in_one_line(line.removesuffix("\r")) for line in text.split("\n"))


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type when the message is empty."""
    text = str(error).strip() or type(error).__name__
    return text.partition("\n")[0].rstrip()


def first_line_of_java(error: BaseException) -> str:
    """The first line of what Java says, where a call of Java raised the error; else the first line of the error."""
    java = getattr(error, "java_exception", None)
    return first_line(error) if java is None else str(java.toString()).strip().partition("\n")[0].rstrip()


def in_one_line(text: str) -> str:
    r"""Text with control and other unprintable characters escaped; a line feed is shown as ``\n``."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


class _ClientError(Exception):
    """Replaces an error of a client library whose text contains a secret."""


def shown_cause(error: BaseException, values: Iterable[str] = ()) -> BaseException:
    """The error to show as a cause: a replacement if the text of ``error`` or of one of its causes contains a secret.

    Tracebacks and Dagster's events show the texts of all causes.
    """
    known = list(values)
    told = [(link, _told(link)) for link in _chain(error)]
    if all(redacted(text, known) == text for _, text in told):
        return error
    text = " <- ".join(f"{type(link).__name__}: {redacted(text, known)}" for link, text in told)
    return _ClientError(printable(text)).with_traceback(error.__traceback__)


def without_secrets(record: logging.LogRecord) -> bool:
    """Take the secrets out of a log record: a filter for the loggers of client libraries."""
    record.msg, record.args = redacted(record.getMessage()), ()
    if record.exc_info and (error := record.exc_info[1]) is not None and (cause := shown_cause(error)) is not error:
        record.exc_info = (type(cause), cause, cause.__traceback__)
    return True


def _told(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _chain(error: BaseException) -> Iterator[BaseException]:
    left, seen = [error], set[int]()
    while left:
        link = left.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        left += [found for found in (link.__cause__, link.__context__) if found is not None]
        if isinstance(link, BaseExceptionGroup):
            left += link.exceptions


def _without_user(match: re.Match[str]) -> str:
    user = match["user"]
    is_name = re.fullmatch(r"[a-z0-9-]+", user) is not None
    if (is_name and _CONTAINER.fullmatch(match["scheme"])) or not (user and (match["scheme"] or ":" in user)):
        return match[0]
    return f"{match['scheme']}//{HIDDEN}@"


def _without_values(text: str) -> str:
    done, at = [], 0
    while (match := _PARAMETER.search(text, at)) is not None:
        done.append(text[at : match.end()])
        at = match.end()
        if _is_secret_parameter(unquote(match["name"]).lower(), in_query=bool(match["lead"])):
            value = _VALUE.match(text, at)
            said = "" if value is None else value[0]
            done += [HIDDEN, said[len(said.rstrip(_END)) :]]
            at += len(said)
    return "".join([*done, text[at:]])


def _is_secret_parameter(name: str, *, in_query: bool) -> bool:
    is_always = name in _ALONE or name.startswith(("x-amz-", "x-goog-"))
    return is_always or (in_query and (name in _IN_A_QUERY or _SECRET_NAME.search(name) is not None))
