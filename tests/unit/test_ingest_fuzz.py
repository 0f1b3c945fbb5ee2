"""Damaged files: whatever happens to the bytes, a reader gives rows that make sense or refuses in one line. It never fails in another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_ingest_formats import FORMS

from lurcher.errors import UserError
from lurcher.ingest import FORMATS, read_log, read_logs

PIECES = [
    b"\n",
    b"\r",
    b"\0",
    b"\x1b[31m",
    b"\xff\xfe",
    b",",
    b"|",
    b"nan",
    b"1e999",
    b"9" * 40,
    b"-",
    b'"',
    b"{",
    b"]",
    b"iteration",
    b"step: 5 ",
    b"=",
    b" ",
    "é".encode(),
]

damage = st.lists(
    st.tuples(
        st.sampled_from(["cut", "put", "double", "swap"]), st.floats(0, 1), st.integers(1, 200), st.sampled_from(PIECES) | st.binary(max_size=8)
    ),
    min_size=1,
    max_size=5,
)


def damaged(content: bytes, steps: list[tuple[str, float, int, bytes]]) -> bytes:
    for kind, where, length, piece in steps:
        at = int(where * len(content))
        part = content[at : at + length]
        if kind == "cut":
            content = content[:at] + content[at + length :]
        elif kind == "put":
            content = content[:at] + piece + content[at:]
        elif kind == "double":
            content = content[:at] + part + part + content[at + length :]
        else:
            content = part + content[:at] + content[at + length :]
    return content


def original(name: str, folder: Path) -> bytes:
    if name == "parquet":
        path = folder / "parquet"
        pq.write_table(pa.table({"iteration": np.arange(40), "rank": np.arange(40) % 2, "duration_s": np.linspace(1, 2, 40)}), path)
        return path.read_bytes()
    return "\n".join(FORMS[name][1].lines(list(range(3, 43)), np.linspace(1, 2, 40).tolist())).encode() + b"\n"


@pytest.mark.parametrize("name", [*FORMS, "parquet"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=damage, form=st.sampled_from([None, None, *FORMATS]))
def test_rows_or_one_line(name: str, steps: list[tuple[str, float, int, bytes]], form: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(damaged(original(name, tmp_path), steps))
    try:
        logs = (read_log(path, format=form),) if form else read_logs([path])
    except UserError as error:
        assert str(path) in str(error)
        assert len(str(error).splitlines()) == 1
        return
    for log in logs:
        keys = log.rows[["index", "rank"]].tolist()
        assert keys == sorted(set(keys)) and len(keys) > 0
        known = log.rows["duration_s"][~np.isnan(log.rows["duration_s"])]
        assert len(known) and np.isfinite(known).all() and (known > 0).all()
        assert log.stride >= 1 and log.num_ranks == len(set(log.rows["rank"].tolist()))
        assert all(len(note.splitlines()) == 1 for note in log.notes)
