"""Progress on stderr: a live display on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from lurcher.control.protocols import Snapshot, Watch

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LINE_EVERY = 10
"""Iterations between two plain lines."""
NOTES_SHOWN = 6


def watching(*, quiet: bool, stream: TextIO | None = None) -> AbstractContextManager[Watch]:
    """The watch that fits: silent if asked for, live on a terminal, plain lines otherwise."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return nullcontext(SilentStatus())
    return LiveStatus(stream) if stream.isatty() else nullcontext(PlainStatus(stream))


class SilentStatus:
    """Shows nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """Nothing."""

    def note(self, reason: str) -> None:
        """Nothing."""


class PlainStatus:
    """A line for each decision and new phase, and for every tenth iteration."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = -1
        self._phase = ""
        self._unread = False

    def update(self, snapshot: Snapshot) -> None:
        """Print the iteration if it is a tenth one or the last, and a phase when it begins."""
        if snapshot.phase and snapshot.phase != self._phase:
            self._line(snapshot.phase)
        self._phase = snapshot.phase
        last = snapshot.iteration == snapshot.num_iterations - 1
        if not snapshot.phase and snapshot.iteration != self._last and (snapshot.iteration % LINE_EVERY == 0 or last):
            self._last = snapshot.iteration
            self._line(_progress(snapshot))

    def note(self, reason: str) -> None:
        """Print a decision."""
        self._line(reason)

    def _line(self, text: str) -> None:
        if self._unread:
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except BrokenPipeError:  # whoever read the lines has left; the training goes on
            self._unread = True


class LiveStatus:
    """A few lines that stay in place on a terminal: progress, state with its reason, split, and the last decisions."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._notes: list[str] = []
        self._snapshot: Snapshot | None = None
        self._live: Live | None = None

    def __enter__(self) -> LiveStatus:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=self._stream), refresh_per_second=4, redirect_stdout=False)
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.update(self._drawn())
            self._live.stop()

    def update(self, snapshot: Snapshot) -> None:
        """Show this state; the display itself is redrawn four times a second."""
        self._snapshot = snapshot
        self._redraw()

    def note(self, reason: str) -> None:
        """Add a decision; the last few are shown."""
        self._notes = [*self._notes, reason][-NOTES_SHOWN:]
        self._redraw()

    def _redraw(self) -> None:
        if self._live is not None:
            self._live.update(self._drawn())

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        parts: list[RenderableType] = []
        if self._snapshot is not None:
            now = self._snapshot
            style = "bold green" if now.state == "observe" else "bold yellow"
            parts.append(ProgressBar(total=now.num_iterations, completed=now.iteration + 1, width=60))
            parts.append(Text(now.phase or _progress(now)))
            parts.append(Text.assemble((now.state, style), f": {now.reason}" if now.reason else ""))
        parts += [Text(f"  {note}", style="dim") for note in self._notes]
        return Group(*parts)


def _progress(now: Snapshot) -> str:
    split = "/".join(map(str, now.split))
    return f"iteration {now.iteration + 1}/{now.num_iterations}  {now.iterations_per_min:.1f}/min  loss {now.loss:.3f}  split {split}  {now.state}"
