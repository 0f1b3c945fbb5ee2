"""The way in for operation traces: recognised by content, read by the reader of their format, which is loaded for its own files only."""

from __future__ import annotations

from pathlib import Path

from lurcher.errors import UserError
from lurcher.ingest.op_trace import OpTrace

_PARQUET_MAGIC = b"PAR1"


def is_trace(path: Path) -> bool:
    """Whether a file holds operations, in Parquet or as a Chrome timeline; False for anything else, and for what cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError:
        return False
    if magic == _PARQUET_MAGIC:
        from lurcher.ingest.op_trace_parquet import is_parquet_trace

        return is_parquet_trace(path)
    from lurcher.ingest.chrome_trace import is_chrome_trace

    return is_chrome_trace(path)


def read_trace(path: Path) -> OpTrace:
    """The trace of a file for which `is_trace` holds; raises UserError, in one line, where it is broken."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; give a trace that can be read") from error
    if magic == _PARQUET_MAGIC:
        from lurcher.ingest.op_trace_parquet import read_parquet_trace

        return read_parquet_trace(path)
    from lurcher.ingest.chrome_trace import read_chrome_trace

    return read_chrome_trace(path)
