"""Lines of a file of any size, in blocks: numbered, without colours, never the whole text at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lurcher.ingest.log import Progress

BLOCK_BYTES = 1 << 20
"""Read at a time; progress is told once a block."""
MAX_LINE_BYTES = 2 << 20
"""What a line has beyond this, and beyond its block, is left out: a file without line ends must not pile up."""
BOM = b"\xef\xbb\xbf"

_CONTROL = re.compile(rb"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00\x1b]")
_RANK = re.compile(r"\s*(?:\[[A-Za-z_]*?(\d+)\]:|(\d+):\s)")


class Block(NamedTuple):
    """Whole lines of a file: the number of the first, the lines without their ends, and whether the last one was ended."""

    first_line: int
    lines: list[bytes]
    ended: bool


def blocks(path: Path, progress: Progress | None = None, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """The file in blocks of whole lines. A UTF-8 mark at the start is dropped; CRLF counts as one end."""
    total = path.stat().st_size
    with path.open("rb") as file:
        yield from _split(file, total, progress, block_bytes)


def _split(file: BinaryIO, total: int, progress: Progress | None, block_bytes: int) -> Iterator[Block]:
    number, done, rest = 1, 0, b""
    while data := file.read(block_bytes):
        if done == 0 and data.startswith(BOM):
            done, data = len(BOM), data[len(BOM) :]
        done += len(data)
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        rest = rest[:MAX_LINE_BYTES]
        if lines:
            yield Block(number, lines, True)
            number += len(lines)
        if progress is not None:
            progress(min(done, total), max(done, total))
    if rest:
        yield Block(number, [rest], False)


def clean(raw: bytes) -> bytes:
    """A line without colours, window titles, NUL bytes; of a line that was overwritten by carriage returns, all parts, as lines do in a terminal."""
    if b"\x1b" in raw or b"\0" in raw:
        raw = _CONTROL.sub(b"", raw)
    return raw.replace(b"\r", b" ") if b"\r" in raw else raw


def rank_prefix(text: str) -> int | None:
    """The rank that a launcher put before the line: `[rank3]:`, `[default3]:` (torchrun), `3: ` (srun --label); None without one."""
    found = _RANK.match(text)
    return int(found[1] or found[2]) if found and len(found[1] or found[2]) < 8 else None
