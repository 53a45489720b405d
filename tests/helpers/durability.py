"""What a power cut would leave, from the order of the calls that name files and sync them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Durability:
    """What a power cut would leave: records when a name appears and what is synced, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, Path]] = []
        fsync, link, replace, mkdir = os.fsync, os.link, os.replace, os.mkdir

        def recording_fsync(descriptor: int) -> None:
            fsync(descriptor)
            self.events.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))

        def recording_link(source: Path, target: Path) -> None:
            link(source, target)
            self.events.append(("link", Path(source)))
            self.events.append(("name", Path(target)))

        def recording_replace(source: Path, target: Path) -> None:
            replace(source, target)
            self.events.append(("link", Path(source)))
            self.events.append(("name", Path(target)))

        def recording_mkdir(path: Path, mode: int = 0o777) -> None:
            mkdir(path, mode)
            self.events.append(("name", Path(path)))

        monkeypatch.setattr(os, "fsync", recording_fsync)
        monkeypatch.setattr(os, "link", recording_link)
        monkeypatch.setattr(os, "replace", recording_replace)
        monkeypatch.setattr(os, "mkdir", recording_mkdir)

    def require(self, file: Path, root: Path) -> None:
        """``file``'s bytes, its name, and every new directory above it would survive."""
        named = self.events.index(("name", file))
        kind, temporary = self.events[named - 1]
        assert kind == "link"
        assert ("sync", temporary) in self.events[:named], "visible before its bytes were durable"
        current = file
        while current != root:
            appeared = [at for at, event in enumerate(self.events) if event == ("name", current)]
            if appeared:
                assert ("sync", current.parent) in self.events[appeared[-1] :], f"{current} would be lost"
            current = current.parent
