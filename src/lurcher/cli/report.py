"""`lurcher report`: make a run's report again, from its folder alone."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from lurcher.errors import UserError


@click.command(short_help="Write or print the report of a run.")
@click.argument("run_dir", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--text", "as_text", is_flag=True, help="Print the report as text.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def report(run_dir: Path, as_text: bool, as_json: bool) -> int:
    """Write report.html into the run folder DIR and print its path; or print the report.

    DIR is all it needs: it may come from another machine, and from a run that died.
    """
    if as_text and as_json:
        raise UserError("--text and --json are both given; choose one")
    from lurcher.report import render_text, write_report
    from lurcher.runlog import RunReader

    if as_text:
        click.echo(render_text(RunReader(run_dir)))
    elif as_json:
        verdict = RunReader(run_dir).verdict()
        if verdict is None:
            raise UserError(f"{run_dir} has no verdict.json, so its run did not end; see `lurcher report {run_dir} --text` for what there is")
        click.echo(msgspec.json.format(msgspec.json.encode(verdict), indent=2))
    else:
        click.echo(write_report(run_dir))
    return 0
