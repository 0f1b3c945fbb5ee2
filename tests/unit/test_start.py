"""What the commands load: for small inputs the start of Python and its imports is nearly all they take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lurcher.cli import short_lived
from lurcher.localize.whatif_middle import median

SOURCE = Path(__file__).parents[2] / "src"

NEVER_FOR_A_TRACE = (
    *("torch", "scipy", "pandas", "plotly", "rich", "jinja2", "tomllib", "tomli_w", "gzip", "csv"),
    *("pyarrow.compute", "pyarrow.dataset", "pyarrow.pandas_compat", "numpy.ma", "numpy.random", "numpy.testing", "numpy.polynomial", "numpy.fft"),
    *(
        "lurcher.report",
        "lurcher.runlog",
        "lurcher.config",
        "lurcher.faults",
        "lurcher.ingest.read",
        "lurcher.ingest.log",
        "lurcher.ingest.chrome_trace",
    ),
    *("lurcher.analyze.fleet", "lurcher.analyze.from_log", "lurcher.analyze.trace_run", "lurcher.cli.logs", "lurcher.plan.joint"),
)
NEVER_FOR_HELP = (*NEVER_FOR_A_TRACE[:6], "pyarrow", "numpy", "lurcher.analyze", "lurcher.ingest", "lurcher.localize", "lurcher.plan")
OF_A_LOG = ("torch", "scipy", "pandas", "plotly", "rich", "jinja2", "lurcher.report", "lurcher.cli.trace", "lurcher.localize.whatif")
RUN = "import sys;from lurcher.cli.app import main;sys.argv[0]='lurcher';code=main();print('loaded',code,*sorted(sys.modules))"


def loaded_by(*words: object) -> set[str]:
    """The modules that a process has loaded at the end of this command line."""
    done = in_process(RUN, *words)
    last = done.splitlines()[-1].split()
    assert last[:2] == ["loaded", "0"], done
    return set(last[2:])


def in_process(code: str, *words: object, **environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key != short_lived.BLAS_THREADS} | {"PYTHONPATH": str(SOURCE)} | environment
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=kept).stdout


@pytest.mark.parametrize("slow", [{(1, 0): 1.6}, {}])
def test_a_trace_loads_only_what_explains_it(slow: dict[tuple[int, int], float], made: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "trace-a.parquet"
    made.write(path, made.made_trace(2, 3, 6, 4, slow=slow, stage_work=(1.0, 1.0)))
    loaded = loaded_by("analyze", path)
    assert {"pyarrow.parquet", "lurcher.localize.whatif"} <= loaded
    assert loaded.isdisjoint(NEVER_FOR_A_TRACE), loaded & set(NEVER_FOR_A_TRACE)


@pytest.mark.parametrize("words", [("--help",), ("analyze", "--help"), ("plan", "--help"), ("report", "--help"), ("--version",)])
def test_help_loads_no_analysis(words: tuple[str, ...]) -> None:
    assert loaded_by(*words).isdisjoint(NEVER_FOR_HELP)


def test_a_log_loads_no_replay_and_no_page(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("iteration,duration_s\n" + "".join(f"{i},1.{i % 7}\n" for i in range(200)))
    loaded = loaded_by("analyze", path)
    assert "lurcher.ingest.read" in loaded
    assert loaded.isdisjoint(OF_A_LOG), loaded & set(OF_A_LOG)


SETTINGS = (
    "import gc,os,sys\nfrom lurcher.cli.app import main\n"
    f"main({{}}); print('settings', gc.get_threshold()[0], os.environ.get({short_lived.BLAS_THREADS!r}), gc.get_freeze_count() > 0)"
)


def test_a_short_command_of_its_own_process_starts_no_threads_for_matrices() -> None:
    usual, own = SETTINGS.format("['analyze', '--help']"), SETTINGS.format("")
    assert in_process(own, "analyze", "--help").splitlines()[-1] == f"settings {short_lived.RARELY} 1 True"
    assert in_process(own, "analyze", "--help", **{short_lived.BLAS_THREADS: "4"}).splitlines()[-1] == f"settings {short_lived.RARELY} 4 True"
    # A caller's process, and one that trains, stay as they are.
    assert in_process(usual).splitlines()[-1] == "settings 700 None False"
    assert in_process(own, "train", "--help").splitlines()[-1] == "settings 700 None False"


@pytest.mark.parametrize("shape", [(1,), (2,), (7,), (40,), (3, 5), (4, 6, 2)])
def test_the_median_is_that_of_numpy_to_the_last_bit(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(len(shape)).lognormal(size=shape)
    for axis in range(len(shape)):
        assert np.array_equal(median(values, axis), np.median(values, axis=axis))
    assert np.array_equal(median(values), np.median(values, axis=-1))
