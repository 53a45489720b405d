"""What tells one version of a project's code from another, where no ``code_version`` does."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.version import __version__

__all__ = ["loaded_code"]


def loaded_code(assets: Sequence[CheckpointedStreamingAsset]) -> str:
    """A digest of the modules that this process has loaded for its definitions; other code has another digest.

    Looked at are the modules in the packages of the assets' functions, and every module that is neither of Python nor
    installed. A module that is loaded later does not count.
    """
    packages = {asset.function.__module__.partition(".")[0] for asset in assets}
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    digest = hashlib.sha256(f"{__version__} {[(asset.name, asset.versions.current) for asset in assets]}".encode())
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if name.partition(".")[0] in packages or not any(path.is_relative_to(place) for place in installed):
            try:
                digest.update(name.encode() + hashlib.sha256(path.read_bytes()).digest())
            except OSError:  # it is gone since it was loaded
                digest.update(name.encode())
    return digest.hexdigest()[:16]
