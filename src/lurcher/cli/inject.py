"""`lurcher inject`: slow a rank of a running job down from outside."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Slow a rank of a running job down, from outside.")
@click.argument("run_dir", metavar="RUN_DIR", type=click.Path(path_type=Path))
@click.option("--rank", type=int, required=True, metavar="N", help="The rank to slow down.")
@click.option("--factor", type=float, required=True, metavar="X", help="How much longer its work takes: 2 is twice as long.")
@click.option("--seconds", "duration_s", type=click.FloatRange(min=0, min_open=True), required=True, metavar="S", help="For how long.")
@click.option(
    "--by",
    type=click.Choice(["stop", "quota"]),
    default="stop",
    show_default=True,
    help="Stop and continue the process 50 times a second, or give it less of a core (needs writable control groups).",
)
def inject(run_dir: Path, rank: int, factor: float, duration_s: float, by: str) -> int:
    """Slow one rank of the job that runs in RUN_DIR down; nothing in the job is told.

    For trying out what is found and how fast. The rank runs on as before when this ends, also by Ctrl-C.
    """
    from lurcher.clock import SystemClock
    from lurcher.control.inject import check_factor, hold_quota, rank_pid, stop_and_continue

    check_factor(factor)
    pid = rank_pid(run_dir, rank)
    click.echo(f"rank {rank} (process {pid}) takes {factor:g} times as long for {duration_s:g} s", err=True)
    slow_down = stop_and_continue if by == "stop" else hold_quota
    lasted_s = slow_down(pid, factor, duration_s, SystemClock(), lambda: False)
    click.echo(f"done after {lasted_s:.1f} s; it runs on as before" if lasted_s >= duration_s else f"the job ended after {lasted_s:.1f} s", err=True)
    return 0
