"""The pages of `lurcher analyze --report` in a real browser: offline, drawn, marked, and deaf to what hostile files are called."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.browser.opened import CHROMIUM, HOSTILE, open_page

from lurcher.cli.app import main

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"), pytest.mark.timeout(180)]


def table(path: Path, num: int, factor: float) -> Path:
    values = 1.0 + 0.01 * np.random.default_rng(1).standard_normal(num)
    values[num // 3 : num // 2] *= factor
    path.write_text("iteration,duration_s\n" + "".join(f"{i},{v:.6f}\n" for i, v in enumerate(values)))
    return path


def ranks(path: Path) -> Path:
    rng = np.random.default_rng(2)
    rows = [f"{i},{r},1.0,{(0.8 + 0.01 * rng.standard_normal()) * (1.4 if r == 3 and i >= 150 else 1.0):.5f}" for i in range(300) for r in range(6)]
    path.write_text("iteration,rank,duration_s,busy_s\n" + "\n".join(rows) + "\n")
    return path


def opened(page: Path, scratch: Path, *arguments: Path) -> tuple[str, str, list[str]]:
    assert main(["analyze", *map(str, arguments), "--report", str(page)]) == 0
    return open_page(page, scratch)


def drawing(document: str, name: str) -> str:
    found = re.search(rf'data-figure="{name}"[^>]*>(.*?)</section>', document, re.S)
    assert found and 'class="main-svg"' in found[1]
    return found[1]


@pytest.mark.parametrize("num", [600, 9000], ids=["each iteration", "buckets"])
def test_a_series_is_drawn_with_its_event(num: int, tmp_path: Path) -> None:
    document, console, asked = opened(tmp_path / "a.html", tmp_path / "scratch", table(tmp_path / "a.csv", num, 1.3))
    assert (console, asked) == ("", [])
    assert "<title>Fail-slow – a.csv" in document
    svg = drawing(document, "series")
    assert 'class="annotation"' in svg and ">1<" in svg  # the badge
    assert svg.count('class="shapelayer"') and len(re.findall(r'<path[^>]*data-index="\d+"', svg)) >= 2  # the shade and the line below the badge
    lines = re.findall(r'class="js-line" d="([^"]+)"', svg)
    assert len(lines) >= 2 and max(line.count("L") for line in lines) > 300
    assert "--c-" not in "".join(re.findall(r"<svg.*?</svg>", document, re.S))


def test_a_suspect_is_drawn_beside_the_others(tmp_path: Path) -> None:
    document, console, asked = opened(tmp_path / "a.html", tmp_path / "scratch", ranks(tmp_path / "a.csv"))
    assert (console, asked) == ("", [])
    svg = drawing(document, "ranks")
    assert ">rank 3<" in svg and "median of the others" in svg


def test_hostile_names_do_nothing(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "_")
    folder.mkdir()
    files = [table(folder / f"{HOSTILE.replace('/', '_')}{n}.csv", 400, 1.3) for n in range(2)]
    for arguments in (files[:1], files):
        page = tmp_path / f"{len(arguments)}.html"
        document, console, asked = opened(page, tmp_path / f"scratch{len(arguments)}", *arguments)
        assert (console, asked) == ("", [])
        assert re.findall(r"<title>(.*?)</title>", document, re.S)[0].startswith(("Fail-slow", "2 runs"))
        assert "<img" not in document.replace("&lt;img", "")


def test_many_runs_are_a_table_with_small_pictures(tmp_path: Path) -> None:
    files = [table(tmp_path / f"{n}.csv", 400 + 1000 * n, 1.0 + 0.2 * (n % 2)) for n in range(4)]
    document, console, asked = opened(tmp_path / "all.html", tmp_path / "scratch", *files)
    assert (console, asked) == ("", [])
    pictures = re.findall(r"<svg.*?</svg>", document, re.S)
    assert len(pictures) == 4 and sum('class="ev-fail_slow"' in p for p in pictures) == 2
    assert all(len(re.findall(r"[\d.]+,[\d.]+", p)) > 90 for p in pictures)
    assert len((tmp_path / "all.html").read_bytes()) < 100_000  # no figure: no plotly
