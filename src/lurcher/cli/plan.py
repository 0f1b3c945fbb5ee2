"""`lurcher plan`: which change of layout pays, against what is possible at best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lurcher.errors import UserError

if TYPE_CHECKING:
    from lurcher.analyze.values import PlanSet
    from lurcher.plan.problem import Problem
    from lurcher.records import Plan


@click.command(short_help="Rank changes of layout for slow or dead parts.")
@click.argument("source", metavar="PROBLEM.toml|DIR", type=click.Path(path_type=Path))
@click.option("--top", metavar="N", type=click.IntRange(min=1), default=3, show_default=True, help="Show the N best plans.")
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON on stdout.")
@click.option("--report", "report_path", metavar="OUT.html", type=click.Path(path_type=Path), help="Also draw the layout before and after.")
def plan(source: Path, top: int, as_json: bool, report_path: Path | None) -> int:
    """Rank what could be done about slow or dead ranks and slow links, each plan against the best that is possible.

    PROBLEM.toml says the layout, the rates of devices and links, and what is wrong. A run folder DIR is planned for from its
    measured rates and its verdict. Nothing is changed anywhere. The best plan has the lowest time an iteration, with its
    pause spread over the iterations that are left.
    """
    from lurcher.plan.joint import plan_all
    from lurcher.report.plan_text import plan_lines

    if report_path is not None and report_path.exists():
        raise UserError(f"{report_path} exists already; name a new file for --report")
    problem = _read(source)
    plans = plan_all(problem)
    if report_path is not None:
        from lurcher.report.plan_page import write_plan_page

        write_plan_page(plans, problem, source.name, report_path)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(_plan_set(plans, top)), indent=2).decode())
    else:
        for line in plan_lines(plans, problem, top):
            click.echo(line)
    if report_path is not None:
        click.echo(f"report  {report_path}", err=as_json)
    return 0


def _read(source: Path) -> Problem:
    if source.is_dir():
        from lurcher.plan.measured import problem_of_run

        return problem_of_run(source)
    from lurcher.plan.problem import load_problem

    return load_problem(source)


def _plan_set(plans: tuple[Plan, ...], top: int) -> PlanSet:
    import math

    from lurcher.analyze.values import PlanEntry, PlanSet, Present
    from lurcher.report.plan_text import is_present

    present = next(plan for plan in plans if is_present(plan))
    entries = tuple(
        PlanEntry(
            predicted_s=plan.predicted_s,
            bound_s=plan.bound_s,
            gap=plan.gap,
            pause_s=plan.pause_s,
            bytes_moved=plan.bytes_moved,
            layout=plan.layout,
            actions=plan.actions,
            reason=plan.reason,
        )
        for plan in plans[:top]
        if math.isfinite(plan.predicted_s)
    )
    return PlanSet(present=Present(predicted_s=present.present_s, layout=present.layout), plans=entries)
