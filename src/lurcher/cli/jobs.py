"""What the commands that train have in common: run the job, write its report, say what came out."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import click
import msgspec

from lurcher.config import JobConfig
from lurcher.errors import EXIT_DONE, EXIT_FAIL_SLOW, UserError

_Command = TypeVar("_Command", bound=Callable[..., Any])


def output_options(command: _Command) -> _Command:
    """The options that say where records and results go; the command gets run_dir, as_json, quiet and exit_code."""
    for option in (
        click.option("--exit-code", is_flag=True, help="Exit with 3 if a fail-slow was found, so that a script can tell."),
        click.option("--quiet", is_flag=True, help="No progress and no closing lines; errors still go to stderr."),
        click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON on stdout; everything else goes to stderr."),
        click.option(
            "--run-dir", metavar="DIR", help="Folder for the run's records; a used one is refused. [default: a new one under lurcher-runs/]"
        ),
    ):
        command = option(command)
    return command


def command_line(context: click.Context) -> str:
    """The command as it was typed, for the record."""
    words = context.find_root().obj
    return shlex.join(("lurcher", *words)) if words else context.command_path


def check_faults(config: JobConfig) -> None:
    """Refuse faults that training here would pass over in silence."""
    for fault in config.fault:
        if fault.phase:
            raise UserError(f'fault "{fault}" cannot be carried out by training yet; it knows faults of whole iterations: leave out in {fault.phase}')
        if fault.where.kind == "link" and not config.pace.has_links:
            raise UserError(
                f'fault "{fault}" slows an emulated link, but links cost nothing here; set layout.ranks_per_node, and pace.link_mb_per_s or pace.link_us'
            )
        if config.pace.kind == "none" and fault.kind not in ("stop", "hang"):
            raise UserError(f'fault "{fault}" slows the emulated device, but pace.kind is "none"; set it to "emulated", or remove the fault')


def carry_out(config: JobConfig, *, command: str, as_json: bool, quiet: bool, exit_code: bool) -> int:
    """Train, write report.html, print the result; returns the exit code."""
    check_faults(config)
    if find_spec("torch") is None:
        raise UserError("training needs PyTorch, which is not installed; run pip install 'lurcher[torch]'")
    from lurcher.cli.closing import closing_lines
    from lurcher.cli.live import watching
    from lurcher.control.train import run_job
    from lurcher.report import write_report

    with watching(quiet=quiet) as watch:
        outcome = run_job(config, command=command, watch=watch)
    report = write_report(outcome.run_dir)
    if outcome.exit_code != EXIT_DONE:
        click.echo(f"lurcher: {outcome.message}", err=True)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(outcome.verdict), indent=2))
    if not quiet:
        for line in closing_lines(outcome.verdict, report, outcome.emulation):
            click.echo(line, err=as_json)
    if outcome.exit_code == EXIT_DONE and exit_code and outcome.verdict.verdict == "fail_slow":
        return EXIT_FAIL_SLOW
    return outcome.exit_code
