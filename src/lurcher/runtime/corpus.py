"""Text to train on, cut into documents of truly different lengths. numpy only.

`stdlib` reads the source files of the running Python, so that a first job needs no download.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError

MAX_CORPUS_BYTES = 2_000_000
"""Reading stops at the end of the file that passes this: every rank reads the corpus by itself, so it must be quick."""
MIN_DOCUMENT_BYTES = 4
_LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n\s*")
_BLANK_LINE_OR_BLOCK = re.compile(rb"\n[ \t\r]*\n\s*|\n(?=[^\s)\]}])")


class Corpus(NamedTuple):
    """All documents end to end; document i is `text[starts[i] : starts[i] + lengths[i]]`."""

    text: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def load_corpus(source: str) -> Corpus:
    """Documents of `source`: `stdlib`, a text file, or a folder (all its files that are text, in sorted order).

    Python files are cut at blank lines and wherever a line starts at the margin, other text at blank lines.
    Raises UserError when there is nothing to read.
    """
    documents: list[bytes] = []
    num_bytes = 0
    for path in _files(source):
        content = _read(path)
        pattern = _BLANK_LINE_OR_BLOCK if path.suffix == ".py" else _BLANK_LINE
        documents += [piece for piece in pattern.split(content) if len(piece) >= MIN_DOCUMENT_BYTES]
        num_bytes += len(content)
        if num_bytes >= MAX_CORPUS_BYTES:
            break
    if not documents:
        raise UserError(f"job.corpus {source!r} holds no text of {MIN_DOCUMENT_BYTES} bytes or more; name a text file, a folder of text, or stdlib")
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return Corpus(np.frombuffer(b"".join(documents), dtype=np.uint8), starts, lengths)


def _files(source: str) -> Iterator[Path]:
    if source == "stdlib":
        yield from _walk(Path(sysconfig.get_path("stdlib")), suffix=".py")
        return
    path = Path(source).expanduser()
    if not path.exists():
        raise UserError(f"job.corpus {source!r} does not exist; name a text file, a folder of text, or stdlib")
    if path.is_dir():
        yield from _walk(path, suffix="")
    else:
        yield path


def _walk(root: Path, suffix: str) -> Iterator[Path]:
    """Files below `root`, a folder's own files before its sub-folders', each in sorted order; lazily, for reading stops early."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in _LEFT_OUT and not name.startswith("."))
        for name in sorted(names):
            if name.endswith(suffix) and not name.startswith("."):
                yield Path(folder, name)


def _read(path: Path) -> bytes:
    """The file's bytes; nothing if it is no text, as a NUL byte tells."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"job.corpus: {path} cannot be read ({error.strerror}); make it readable or leave it out of the folder") from None
    return b"" if b"\0" in content else content
