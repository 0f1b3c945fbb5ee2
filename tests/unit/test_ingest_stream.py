"""Large files: read a chunk at a time, as numbers and not as an object a cell; whichever way a chunk is read, its rows are the same."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lurcher.errors import UserError
from lurcher.ingest import read_log
from lurcher.ingest.lines import Chunk, chunks
from lurcher.ingest.series import Lines, Series
from lurcher.ingest.table import Header, Table

CELLS = st.one_of(
    st.integers(-5, 10**16).map(str),
    st.floats(allow_nan=False).map(repr),
    st.floats(0.001, 1000).map(lambda x: f"{x:.6g}"),
    st.sampled_from(["", " ", "nan", "NaN", "-nan", "null", "None", "NA", "n/a", "-", "inf", "-inf", "Infinity", "1e999", "-1e999", "1e-400", "x", "1_5", "0x1p3"]),
    st.sampled_from(["7,412", "2.6M", "1.05K", "+5", ".5", "5.", "1.E3", "1e3", "1E+3", "007", "-0", "1 2", "12ms", "٣", "1\t", "#1", "\x00", "\ufeff1"]),
)  # fmt: skip
DRESS = st.sampled_from(["{}", "{}", "{}", " {}", "{} ", '"{}"', ' "{}"', '"{}', '{}"', "'{}'"])
ROW = st.lists(st.builds(lambda cell, dress: dress.format(cell), CELLS, DRESS), min_size=1, max_size=4).map(",".join)
PLAIN = st.builds("{},{},{}".format, st.integers(0, 99), st.floats(0.1, 9).map(repr), CELLS)
LINE = st.one_of(ROW, ROW, PLAIN, PLAIN, PLAIN, st.sampled_from(["", "# note", "a,b,c", " "]))


def both_ways(text: bytes) -> None:
    """If Arrow takes a chunk, then the reader of single lines takes it too, and finds the same rows."""
    table = Table(Path("file"), Header(("a", "b", "c"), ",", 1), (0, 1))
    chunk = Chunk(2, text, True)
    quick = table._at_once(chunk)
    if quick is None:
        return
    lines, values = table._by_line(chunk)
    assert lines.tolist() == quick[0].tolist()
    for found in (values, quick[1]):
        found[~np.isfinite(found)] = np.nan
    np.testing.assert_array_equal(values, quick[1])


@settings(max_examples=600)
@given(lines=st.lists(LINE, min_size=1, max_size=5), end=st.sampled_from(["\n", "\r\n"]))
@example(lines=["1,2,3", "1,1e999,3"], end="\n")
def test_arrow_and_the_reader_of_lines_agree(lines: list[str], end: str) -> None:
    both_ways(end.join(lines).encode())


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2), st.floats(0.1, 9)), min_size=1, max_size=40),
    size=st.integers(1, 200),
    odd=st.booleans(),
)
def test_chunks_of_any_size_give_the_same_rows(rows: list[tuple[int, int, float]], size: int, odd: bool, tmp_path: Path) -> None:
    """Against a list: rows are found whole, with their lines, wherever a chunk is cut; a blank line sends its chunk the slow way."""
    path = tmp_path / "file"
    body = [f"{i},{r},{d!r}" for i, r, d in rows]
    lines = ["# made", "iteration,rank,duration_s", *([*body[:1], "", *body[1:]] if odd else body)]
    path.write_text("\n".join(lines) + "\n")
    table = Table(path, Header(("iteration", "rank", "duration_s"), ",", 2), (0, 1, 2))
    found: list[tuple[int, ...]] = []
    for chunk in chunks(path, chunk_bytes=size):
        rest = table._below_the_header(chunk)
        if rest is not None:
            at, values = table._at_once(rest) or table._by_line(rest)
            found += zip(at.tolist(), *values.tolist(), strict=True)
    expected = [(lines.index(line, 2 + n) + 1, *map(float, line.split(","))) for n, line in enumerate(body)]
    assert found == [(at, *row) for (at, *row) in expected] if len(set(body)) == len(body) else len(found) == len(body)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.lists(st.integers(0, 59), max_size=10))
def test_lines_of_rows(gaps: list[int], asked: list[int]) -> None:
    at, lines = 0, Lines()
    where = []
    for row, gap in enumerate(gaps):
        at += gap
        lines.add(row, at)
        where.append(at)
    assert [lines.at(row) for row in asked if row < len(where)] == [where[row] for row in asked if row < len(where)]


def test_a_series_taken_at_once_is_that_taken_row_by_row() -> None:
    rng = np.random.default_rng(4)
    index, rank, line = rng.integers(0, 99, 50), rng.integers(0, 4, 50), np.cumsum(rng.integers(1, 3, 50))
    values = rng.random((2, 50))
    one, many = Series("a", ("x", "y")), Series("a", ("x", "y"))
    for i in range(50):
        one.append(int(index[i]), int(rank[i]), int(line[i]), values[:, i].tolist())
    for part in (slice(0, 20), slice(20, 20), slice(20, 50)):
        many.extend(index[part], rank[part], line[part], values[:, part])
    for a, b in ((one.index, many.index), (one.rank, many.rank), (one.column("y"), many.column("y"))):
        assert a.tolist() == b.tolist()
    assert [one.lines.at(i) for i in range(50)] == [many.lines.at(i) for i in range(50)] == line.tolist()
    with pytest.raises(BufferError):  # `a` and `b` still look at the last ones
        one.append(1, 1, 1, (1.0, 1.0))


def peak_of(path: Path) -> tuple[int, int]:
    """Bytes that Python and numpy held at most while a file was read, and bytes of the rows."""
    tracemalloc.start()
    log = read_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, log.rows.nbytes


@pytest.mark.parametrize("kind", ["in order", "ranks", "an odd line"])
def test_a_table_costs_numbers_not_objects(kind: str, tmp_path: Path) -> None:
    """Twice the rows: what is held grows by the rows themselves and some tens of bytes each; a Python object a cell would be a hundred."""
    peaks = []
    for num in (100_000, 200_000):
        path = tmp_path / f"{num}"
        rows = [f"{i // 4},{i % 4},1.25\n" for i in range(num)] if kind == "ranks" else [f"{i},0,{1 + i % 7 / 100}\n" for i in range(num)]
        if kind == "an odd line":
            rows[num // 2] = f"{num // 2},0,1.5K\n"
        path.write_text("iteration,rank,duration_s\n" + "".join(rows))
        if not peaks:
            read_log(path)  # imports, caches
        peaks.append(peak_of(path))
    (small, few), (large, many) = peaks
    assert (large - small) - (many - few) < 100_000 * 60


def test_text_costs_numbers_not_objects(tmp_path: Path) -> None:
    peaks = []
    for num in (8_000, 16_000):
        path = tmp_path / f"{num}"
        path.write_text("".join(f" iteration {i}/ 99999 | elapsed time per iteration (ms): {1000 + i % 7}.0 |\n{'noise ' * 9}\n" for i in range(num)))
        if not peaks:
            read_log(path)
        peaks.append(peak_of(path))
    (small, few), (large, many) = peaks
    assert (large - small) - (many - few) < 8_000 * 100


def test_a_wrong_line_deep_in_a_large_table_is_named(tmp_path: Path) -> None:
    rows = [f"{i},1.25" for i in range(200_000)]
    rows[150_000] = "150000,fast"
    path = tmp_path / "a"
    path.write_text("iteration,duration_s\n" + "\n".join(rows) + "\n")
    with pytest.raises(UserError, match="line 150002 has 'fast' under 'duration_s'"):
        read_log(path)
