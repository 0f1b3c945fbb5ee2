"""Lines of a file of any size, a chunk at a time: numbered, without colours, never the whole text at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lurcher.ingest.log import Progress

CHUNK_BYTES = 1 << 20
"""Read at a time; progress is told once a chunk."""
MAX_LINE_BYTES = 2 << 20
"""What a line has beyond this, and beyond its chunk, is left out: a file without line ends must not pile up."""
BOM = b"\xef\xbb\xbf"

_CONTROL = re.compile(rb"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00\x1b]")
_RANK = re.compile(r"\s*(?:\[[A-Za-z_]*?(\d+)\]:|(\d+):\s)")


class Chunk(NamedTuple):
    """Whole lines of a file as they lie there, without the end of the last one: the number of the first, and whether the last one was ended."""

    first_line: int
    data: bytes
    ended: bool

    @property
    def num_lines(self) -> int:
        """Lines in it, one at least."""
        return self.data.count(b"\n") + 1


class Block(NamedTuple):
    """The lines of a chunk apart, without their ends."""

    first_line: int
    lines: list[bytes]
    ended: bool


def chunks(path: Path, progress: Progress | None = None, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The file in chunks of whole lines. A UTF-8 mark at the start is dropped."""
    total = path.stat().st_size
    with path.open("rb") as file:
        yield from _whole_lines(file, total, progress, chunk_bytes)


def blocks(path: Path, progress: Progress | None = None, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Block]:
    """The same, line by line."""
    for chunk in chunks(path, progress, chunk_bytes):
        yield Block(chunk.first_line, chunk.data.split(b"\n"), chunk.ended)


def _whole_lines(file: BinaryIO, total: int, progress: Progress | None, chunk_bytes: int) -> Iterator[Chunk]:
    number, done, rest = 1, 0, b""
    while data := file.read(chunk_bytes):
        if done == 0 and data.startswith(BOM):
            done, data = len(BOM), data[len(BOM) :]
        done += len(data)
        cut = data.rfind(b"\n")
        if cut >= 0:
            chunk = Chunk(number, b"".join((rest, memoryview(data)[:cut])), True)
            rest, data = b"", data[cut + 1 :]
            yield chunk
            number += chunk.num_lines
        rest = (rest + data)[:MAX_LINE_BYTES]
        if progress is not None:
            progress(min(done, total), max(done, total))
    if rest:
        yield Chunk(number, rest, False)


def clean(raw: bytes) -> bytes:
    """A line without colours, window titles, NUL bytes; of a line that was overwritten by carriage returns, all parts, as lines do in a terminal."""
    if b"\x1b" in raw or b"\0" in raw:
        raw = _CONTROL.sub(b"", raw)
    return raw.replace(b"\r", b" ") if b"\r" in raw else raw


def rank_prefix(text: str) -> int | None:
    """The rank that a launcher put before the line: `[rank3]:`, `[default3]:` (torchrun), `3: ` (srun --label); None without one."""
    found = _RANK.match(text)
    return int(found[1] or found[2]) if found and len(found[1] or found[2]) < 8 else None
