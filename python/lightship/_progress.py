"""A line of progress on stderr, in a terminal or a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

_WIDTH = 24


def _is_shown() -> bool:
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


class Bar:
    """``with Bar(True) as observe:``; ``observe`` is None if nothing is to be shown."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and _is_shown()
        self._began = time.monotonic()
        self._length = 0

    def __enter__(self) -> Callable[[int, int, int | None], None] | None:
        return self._show if self._wanted else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._length:
            sys.stderr.write("\r" + " " * self._length + "\r")
            sys.stderr.flush()

    def _show(self, rows: int, count: int, estimate: int | None) -> None:
        took = time.monotonic() - self._began
        if took < 0.5 or not rows:
            return
        text = f"{rows:,} rows, {size(count)}, {size(count / took)}/s"
        if estimate:
            done = min(rows / estimate, 1.0)
            filled = round(done * _WIDTH)
            text = f"[{'#' * filled}{' ' * (_WIDTH - filled)}] {text}"
        self._length, blanks = len(text), max(self._length - len(text), 0)
        sys.stderr.write("\r" + text + " " * blanks)
        sys.stderr.flush()
