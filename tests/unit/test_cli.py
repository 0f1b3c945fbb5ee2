"""The commands: what they load, what they refuse, what goes to stdout and what to stderr, and the exit codes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import msgspec
import pytest

from lurcher import __version__
from lurcher.analyze.values import Copies, Source, Suspect, SuspectComponent, Throughput, Verdict, VerdictEvent, Verification
from lurcher.cli.app import COMMANDS, app, main
from lurcher.cli.closing import closing_lines
from lurcher.cli.live import LiveStatus, PlainStatus, SilentStatus, watching
from lurcher.config import JobConfig, layout_of
from lurcher.control.chaos import draw_faults
from lurcher.control.protocols import Snapshot, Watch
from lurcher.errors import JobDied
from lurcher.faults import parse_fault
from lurcher.layout import Layout
from lurcher.records import Action, Place, Plan, Reconfiguration

HEAVY = ("torch", "pyarrow", "plotly", "scipy", "rich", "jinja2")
LAYOUT = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=32)


def snapshot(iteration: int, **changes: Any) -> Snapshot:
    values: dict[str, Any] = {
        "iteration": iteration,
        "num_iterations": 72,
        "iterations_per_min": 60.0,
        "loss": 2.5,
        "state": "observe",
        "reason": "nothing stands out",
        "split": (16, 16),
    }
    return Snapshot(**{**values, **changes})


def verdict(kind: str = "fail_slow") -> Verdict:
    source = Source(path="r", format="run", num_iterations=72, num_ranks=8)
    if kind == "healthy":
        return Verdict(source=source, verdict="healthy", summary="Healthy.", throughput=Throughput(healthy_iter_per_min=60.0))
    component = SuspectComponent(kind="rank", id="5", ranks=(5,), places=(Place(5, "node-a", 5),))
    event = VerdictEvent(
        kind="fail_slow",
        onset_iteration=25,
        end_iteration=51,
        detected_iteration=31,
        slowdown=1.6,
        lost_s=9.0,
        cause="compute",
        suspects=(Suspect(component=component, cause="compute", slowdown=1.8, confidence=0.9),),
        validated=True,
    )
    plan = Plan(LAYOUT.with_split((20, 12)), (Action("split", "20/12"),), 1.6, 1.2, 1.15, 0.2, 0, "better")
    change = Reconfiguration(plan, 1, 34, 0.2, 0, "applied", "pays off")
    rates = Throughput(healthy_iter_per_min=60.0, slow_iter_per_min=38.0, mitigated_iter_per_min=49.4, recovered_iter_per_min=59.8)
    return Verdict(source=source, verdict="fail_slow", summary="Rank 5 is slow.", events=(event,), reconfigurations=(change,), throughput=rates)


class Outcome(msgspec.Struct):
    verdict: Verdict
    run_dir: Path
    exit_code: int = 0
    message: str = ""
    emulation: str = ""


class Runtime:
    """Stands for the runtime and the report: remembers what it was asked for, answers what it was told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[JobConfig, str]] = []
        self.outcome = Outcome(verdict(), Path("runs/a"))
        self.error: BaseException | None = None

    def run_job(self, config: JobConfig, *, command: str, watch: Watch) -> Outcome:
        self.asked.append((config, command))
        watch.update(snapshot(0))
        watch.note("rank 5 is suspected")
        if self.error is not None:
            raise self.error
        return self.outcome


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    stand_in = Runtime()
    train, report = ModuleType("lurcher.control.train"), ModuleType("lurcher.report")
    train.run_job = stand_in.run_job  # type: ignore[attr-defined]
    report.write_report = lambda path: Path(path) / "report.html"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lurcher.control.train", train)
    monkeypatch.setitem(sys.modules, "lurcher.report", report)
    monkeypatch.setattr("lurcher.cli.jobs.find_spec", lambda _: object())
    return stand_in


def in_new_python(code: str) -> str:
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(source)!r})\n{code}"], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"], ["train", "--help"], ["report", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    out = in_new_python(
        f"from lurcher.cli.app import main\ncode = main({words!r})\nprint('loaded', [m for m in {HEAVY!r} if m in sys.modules], code)"
    )
    assert out.splitlines()[-1] == "loaded [] 0"


def test_version_and_help_say_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lurcher {__version__}\n"
    assert main([]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in COMMANDS)


def test_every_command_and_option_has_help() -> None:
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        assert command.help
        assert command.short_help
        for option in command.params:
            assert isinstance(option, click.Argument) or option.help, f"{name} {option.name}"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["foo"], 2, "No such command 'foo'; see `lurcher --help`"),
        (["demo", "--slow-rnk", "3"], 2, "--slow-rank"),
        (["demo", "--tp", "two"], 2, "'two' is not a valid integer; see `lurcher demo --help`"),
        (["demo", "--tp", "0"], 2, "layout.tp is 0; expected a whole number of 1 or more"),
        (["demo", "--slow-rank", "8"], 2, "hits rank 8, but the layout has ranks 0..7"),
        (["demo", "--slow-rank", "-1"], 2, "numbered from 0"),
        (["demo", "--slow-factor", "0.5"], 2, "1.0 is healthy"),
        (["demo", "--healthy", "--slow-rank", "2"], 2, "remove --slow-rank"),
        (["demo", "--iterations", "20"], 2, "give 70 or more, or --healthy"),
        (["demo", "--dp", "40"], 2, "is 32 for 40 replicas"),
        (["train"], 2, "Missing argument 'JOB.toml'; see `lurcher train --help`"),
        (["train", "none.toml"], 2, "none.toml does not exist"),
        (["train", "job.toml", "--fault", "slow rank 5 from 3"], 2, "no factor"),
        (["train", "job.toml", "--fault", "slow link 0-4 x2 from 3"], 2, "set layout.ranks_per_node, and pace.link_mb_per_s"),
        (["train", "job.toml", "--fault", "slow rank 5 x2 in backward from 3"], 2, "cannot be carried out by training yet"),
        (["train", "job.toml", "--pace", "none", "--fault", "slow rank 5 x2 from 3"], 2, 'pace.kind is "none"'),
        (["train", "job.toml", "--pace", "none", "--chaos", "1"], 2, 'pace.kind is "none"'),
        (["report", "x", "--text", "--json"], 2, "choose one"),
        (["inject", "none", "--rank", "0", "--factor", "2", "--seconds", "1"], 2, "give the run directory of a job that is running"),
        (["inject", "none", "--rank", "0", "--factor", "1", "--seconds", "1"], 2, "the factor is 1"),
        (["inject", "none", "--rank", "0", "--factor", "2", "--seconds", "0"], 2, "--seconds"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(
    words: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runtime: Runtime
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text("")
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lurcher: ")
    assert err.count("\n") == 1
    assert said in err
    assert not runtime.asked


def test_demo_is_the_default_job_with_one_slow_rank(runtime: Runtime) -> None:
    assert main(["demo", "--quiet"]) == 0
    config, command = runtime.asked[0]
    assert config == msgspec.structs.replace(JobConfig(), fault=(parse_fault("slow rank 5 x1.8 from 25 to 52"),))
    assert command == "lurcher demo --quiet"


def test_demo_takes_its_options(runtime: Runtime) -> None:
    words = "demo --slow-rank 1 --slow-factor 2.5 --bucketed --seed 7 --iterations 80 --tp 1 --pp 6 --dp 3 --num-microbatches 12 --run-dir there"
    assert main(words.split()) == 0
    config, _ = runtime.asked[0]
    assert config.fault == (parse_fault("slow rank 1 x2.5 from 25 to 52"),)
    assert (config.job.bucketed, config.job.seed, config.job.iterations, config.run.dir) == (True, 7, 80, "there")
    assert (config.layout.tp, config.layout.pp, config.layout.dp, config.layout.num_microbatches) == (1, 6, 3, 12)
    assert layout_of(config).num_layers == 6
    assert main(["demo", "--healthy", "--iterations", "5"]) == 0
    assert runtime.asked[1][0].fault == ()
    assert main(["demo", "--tp", "1", "--dp", "1"]) == 0
    assert runtime.asked[2][0].fault[0].where.ranks == (1,)


def test_train_puts_options_over_the_file(runtime: Runtime, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[job]\nseed = 3\niterations = 90\n[[fault]]\ntext = "slow rank 1 x2 from 5"\n')
    assert main(["train", str(job), "--seed", "4", "--fault", "slow rank 2 x3 from 9", "--fault", "stop rank 0 from 80"]) == 0
    config, _ = runtime.asked[0]
    assert (config.job.seed, config.job.iterations) == (4, 90)
    assert [str(fault) for fault in config.fault] == ["slow rank 1 x2 from 5", "slow rank 2 x3 from 9", "stop rank 0 from 80"]


def test_chaos_draws_faults_and_goes_on_without_the_lost(runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[job]\niterations = 400\n")
    assert main(["train", str(job), "--chaos", "3", "--fault", "slow rank 1 x2 from 3 to 5"]) == 0
    config, _ = runtime.asked[0]
    given, drawn = config.fault[0], config.fault[1:]
    assert str(given) == "slow rank 1 x2 from 3 to 5" and drawn == draw_faults(3, range(8), 400)
    assert config.run.on_death == "recover"
    assert capsys.readouterr().err.count("chaos: ") == len(drawn) > 3


def test_json_is_alone_on_stdout(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0
    out, err = capsys.readouterr()
    assert msgspec.json.decode(out, type=Verdict) == verdict()
    assert out.startswith('{\n  "schema": "lurcher/verdict/1"')
    assert "rank 5 is suspected" in err
    assert "runs/a/report.html" in err


def test_without_json_the_result_goes_to_stdout_and_progress_to_stderr(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Rank 5 is slow.\n")
    assert out.endswith("report     runs/a/report.html\n")
    assert "iteration 1/72" in err


def test_quiet_says_nothing(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_exit_codes(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quiet", "--exit-code"]) == 3
    runtime.outcome = Outcome(verdict("healthy"), Path("runs/a"))
    assert main(["demo", "--quiet", "--exit-code"]) == 0
    runtime.outcome = Outcome(verdict(), Path("runs/a"), 4, "rank 2 died at iteration 30")
    assert main(["demo", "--quiet", "--exit-code"]) == 4
    assert capsys.readouterr().err == "lurcher: rank 2 died at iteration 30\n"
    runtime.error = JobDied("no rank came up\nin 120 s")
    assert main(["demo", "--quiet"]) == 4
    assert capsys.readouterr().err == "lurcher: no rank came up in 120 s\n"
    runtime.error = KeyboardInterrupt()
    assert main(["demo", "--quiet"]) == 130
    assert capsys.readouterr().err.strip() == "lurcher: interrupted"


def test_a_missing_torch_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("lurcher.cli.jobs.find_spec", lambda _: None)
    assert main(["demo"]) == 2
    assert "pip install 'lurcher[torch]'" in capsys.readouterr().err


def test_closing_lines_tell_what_happened() -> None:
    text = "\n".join(closing_lines(verdict(), Path("r/report.html")))
    assert "healthy 60.0, slow 38.0, mitigated 49.4, recovered 59.8 iterations/min" in text
    assert "rank 5 (node-a cpu): compute x1.80, iterations 25 to 51, proven by benchmark" in text
    assert "20/12 micro-batches per replica from iteration 34" in text
    assert "predicted x1.33, measured x1.30" in text
    assert closing_lines(verdict("healthy"), Path("r")) == ["Healthy.", "  throughput healthy 60.0 iterations/min", "  report     r"]


def test_closing_lines_tell_of_copies_and_of_the_verification() -> None:
    copies = Copies(num=7, pause_s=0.012, share=0.0031, most_bytes=2_400_000, total_bytes=19_000_000)
    same = Verification(
        same=True, num_iterations=9, tolerance=1e-9, loss_error=0.0, norm_error=0.0, state_errors={}, reason="9 iterations are the same"
    )
    lines = closing_lines(msgspec.structs.replace(verdict(), copies=copies, verification=same), Path("r"))
    assert "  copies     7, 0.3% of the time; 2.4 MB of memory on the rank with most" in lines
    assert "  verified   9 iterations are the same" in lines
    off = msgspec.structs.replace(same, same=False)
    assert "  DIFFERS    9 iterations are the same" in closing_lines(msgspec.structs.replace(verdict(), verification=off), Path("r"))


def test_verify_is_handed_to_the_job(runtime: Runtime, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[run]\nverify_every = 0\n")
    assert main(["train", str(job), "--verify"]) == 0 and main(["train", str(job)]) == 0
    assert [config.run.verify for config, _ in runtime.asked] == [True, False]


def test_plain_progress_is_a_line_for_every_tenth_iteration_phase_and_decision() -> None:
    stream = io.StringIO()
    status = PlainStatus(stream)
    status.update(snapshot(0, phase="starting ranks"))
    status.update(snapshot(0, phase="starting ranks"))
    for i in range(72):
        status.update(snapshot(i))
    status.note("rank 5 is proven slow")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "starting ranks"
    assert lines[-1] == "rank 5 is proven slow"
    assert [line.split()[1] for line in lines[1:-1]] == [f"{i + 1}/72" for i in (0, 10, 20, 30, 40, 50, 60, 70, 71)]


def test_the_watch_fits_the_stream() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with watching(quiet=True, stream=Terminal()) as silent, watching(quiet=False, stream=io.StringIO()) as plain:
        assert isinstance(silent, SilentStatus)
        assert isinstance(plain, PlainStatus)
    terminal = Terminal()
    with watching(quiet=False, stream=terminal) as live:
        assert isinstance(live, LiveStatus)
        live.update(snapshot(41, state="mitigate", reason="rank 5 was given less", split=(20, 12)))
        live.note("[bold]a host's name is no markup[/bold]")
    told = terminal.getvalue()
    assert "iteration 42/72" in told
    assert "rank 5 was given less" in told
    assert "[bold]" in told


def test_progress_that_nobody_reads_any_more_stops_nothing() -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    stream = Closed()
    status = PlainStatus(stream)
    status.note("first")
    status.note("second")
    assert stream.getvalue() == "first\n", "nothing is written once the reader is known to be gone"


def test_closing_lines_say_in_words_what_a_new_layout_changes() -> None:
    found = verdict()
    (change,) = found.reconfigurations
    plan = msgspec.structs.replace(change.plan, actions=(Action("split", "20/12"), Action("relayer", "layers of replica 1: 2/2 -> 3/1")))
    found = msgspec.structs.replace(found, reconfigurations=(msgspec.structs.replace(change, plan=plan),))
    lines = closing_lines(found, Path("r/report.html"))
    at = next(i for i, line in enumerate(lines) if line.startswith("  layout "))
    assert "20/12 micro-batches per replica" in lines[at] and "layers of replica 1: 2/2 -> 3/1" in lines[at + 1]
