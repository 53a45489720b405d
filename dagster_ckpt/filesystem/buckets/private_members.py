"""Private members of gcsfs, s3fs, adlfs and what they send requests with, which this package calls, overrides or sets.

A release without one of these members, or with another signature, is refused by name before any request is sent.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pkgutil import resolve_name

from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["ADLFS", "AIOBOTOCORE", "AIOHTTP", "GCSFS", "S3FS", "PrivateMembers"]


@dataclass(frozen=True, slots=True)
class PrivateMembers:
    """The members of one library that are called or overridden here.

    Attributes:
        library: the name of its distribution.
        tested: the releases that the tests ran with, as pip writes them.
        signatures: the name of each member with the parameters that are used, in their order; no parameters for a
            member that is not called, or whose override only this package calls. Other parameters need a default value.
        switches: the name of a method with the attribute that the method reads, and that is set here. A release that
            does not read the attribute would take it, and do as before.
    """

    library: str
    tested: str
    signatures: Mapping[str, str]
    switches: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Compare the members with the installed release.

        Raises:
            InvalidConfiguration: a member is missing, or has another signature.
        """
        wrong = [name for name, expected in self.signatures.items() if not _is_as_expected(name, expected)]
        wrong += [f"{name}: {switch}" for name, switch in self.switches.items() if not _reads(name, switch)]
        if wrong:
            raise InvalidConfiguration(
                f"{self.library} {version(self.library)} does not have what is called of it, or has it with other "
                f"parameters: {', '.join(name.partition(':')[2] for name in wrong)}.",
                hint=f'Install a release that was tested: `pip install "{self.library}{self.tested}"`.',
            )


GCSFS = PrivateMembers(
    "gcsfs",
    ">=2025.3,<=2026.10.1",
    {
        "gcsfs.core:GCSFileSystem._call": "self, method, path, *args, json_out, **kwargs",
        "gcsfs.core:GCSFileSystem._cat_file": "self, path, start, end",
        "gcsfs.core:GCSFileSystem._get_object": "self, path",
        "gcsfs.core:GCSFileSystem._info": "self, path",
        "gcsfs.core:GCSFileSystem._location": "",
        "gcsfs.core:GCSFileSystem._ls": "self, path, detail",
        "gcsfs.core:GCSFileSystem._pipe_file": "",
        "gcsfs.core:GCSFileSystem._put_file": "",
        "gcsfs.core:GCSFileSystem._request.__wrapped__": "self, method, path, *args, headers, json, data, **kwargs",
        "gcsfs.core:GCSFileSystem._rm_file": "self, path",
        "gcsfs.core:GCSFileSystem.retries": "",
        "gcsfs.core:GCSFileSystem.split_path": "self, path",
        "gcsfs.retry:ChecksumError": "",
        "gcsfs.retry:HttpError": "",
        "gcsfs.retry:retry_request": "func, retries",
    },
)
S3FS = PrivateMembers(
    "s3fs",
    ">=2025.3,<=2026.9.0",
    {
        "s3fs.core:S3FileSystem._call_s3": "self, method, *akwarglist, **kwargs",
        "s3fs.core:S3FileSystem._cat_file": "self, path, start, end",
        "s3fs.core:S3FileSystem._get_s3_method_kwargs": "self, method, *akwarglist, **kwargs",
        "s3fs.core:S3FileSystem._info": "self, path",
        "s3fs.core:S3FileSystem._ls": "",
        "s3fs.core:S3FileSystem._lsdir": "self, path",
        "s3fs.core:S3FileSystem._pipe_file": "self, path, data, mode",
        "s3fs.core:S3FileSystem._put_file": "",
        "s3fs.core:S3FileSystem._rm_file": "self, path",
        "s3fs.core:S3FileSystem.get_s3": "self, bucket",
        "s3fs.core:S3FileSystem.retries": "",
        "s3fs.core:S3FileSystem.set_session": "self",
        "s3fs.core:S3FileSystem.split_path": "self, path",
        "s3fs.core:_error_wrapper": "func, kwargs, retries",
    },
)
ADLFS = PrivateMembers(
    "adlfs",
    ">=2025.8,<=2026.8.0",
    {
        "adlfs:AzureBlobFileSystem._cat_file": "self, path, start, end",
        "adlfs:AzureBlobFileSystem._info": "self, path",
        "adlfs:AzureBlobFileSystem._ls": "",
        "adlfs:AzureBlobFileSystem._pipe_file": "self, path, value, **kwargs",
        "adlfs:AzureBlobFileSystem._put_file": "",
        "adlfs:AzureBlobFileSystem._rm_file": "self, path",
        "adlfs:AzureBlobFileSystem.do_connect": "self",
        "adlfs:AzureBlobFileSystem.split_path": "self, path",
    },
)
AIOBOTOCORE = PrivateMembers(
    "aiobotocore",
    ">=2.19,<=3.10.0",
    {"aiobotocore.httpsession:AIOHTTPSession._get_session": "self, proxy_url"},
)
AIOHTTP = PrivateMembers(
    "aiohttp", ">=3.11,<=3.14.5", {}, switches={"aiohttp:ClientSession._request": "_retry_connection"}
)


def _reads(name: str, switch: str) -> bool:
    try:
        return switch in resolve_name(name).__code__.co_names
    except (AttributeError, ImportError):
        return False


def _is_as_expected(name: str, expected: str) -> bool:
    try:
        member = resolve_name(name)
    except (AttributeError, ImportError):
        return False
    if not expected:
        return True
    relied_on = expected.split(", ")
    # The text of a parameter without its annotation and default value, with its stars.
    found = {
        str(parameter.replace(annotation=parameter.empty, default=parameter.empty)): parameter
        for parameter in inspect.signature(member).parameters.values()
    }
    return [text for text in found if text in relied_on] == relied_on and all(
        text in relied_on or parameter.default is not parameter.empty or text.startswith("*")
        for text, parameter in found.items()
    )
