"""Something else happens between two lines of the code under test, at each line in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class Line:
    """The moment before the line with this number, counted over the lines that run.

    Attributes:
        index: from 0.
        reached: whether so many lines ran.
        passed: lines that ran before.
    """

    ending: str
    index: int
    reached: bool = False
    passed: int = 0

    @contextmanager
    def then(self, act: Callable[[], object]) -> Iterator[None]:
        """While the block runs, call ``act`` once, before that line of the module."""

        def step(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line" and not self.reached:
                if self.passed == self.index:
                    self.reached = True
                    sys.settrace(None)
                    act()
                    return None
                self.passed += 1
            return None if self.reached else step

        def enter(frame: FrameType, event: str, argument: object) -> Any:
            return step if frame.f_code.co_filename.endswith(self.ending) else None

        before = sys.gettrace()
        sys.settrace(enter)
        try:
            yield
        finally:
            sys.settrace(before)


def at_every_line(ending: str) -> Iterator[Line]:
    """Each line of the module whose path ends so, until a run has no further line."""
    index = 0
    while True:
        line = Line(ending, index)
        yield line
        if not line.reached:
            return
        index += 1
