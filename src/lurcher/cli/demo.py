"""`lurcher demo`: a small training job on this machine, with one rank made slow."""

from __future__ import annotations

import click

from lurcher.cli.jobs import carry_out, command_line, output_options
from lurcher.config import JobConfig, override
from lurcher.errors import UserError
from lurcher.faults import Fault, Iterations, Where

ONSET = 25
"""First slow iteration: after the detector has armed."""
END = 52
"""First healthy iteration again."""
SLOW_RANK = 5
SLOW_FACTOR = 1.8


@click.command(short_help="Train a small model here with one slow rank, and watch it being found.")
@click.option("--slow-rank", type=int, metavar="R", help=f"The rank made slow. [default: {SLOW_RANK}, or the last one of a smaller layout]")
@click.option("--slow-factor", type=float, metavar="F", help=f"How many times longer its work takes. [default: {SLOW_FACTOR}]")
@click.option("--healthy", is_flag=True, help="No fault at all: nothing should be found.")
@click.option("--bucketed", is_flag=True, help="Batch documents by length, so that iterations differ in work though all is healthy.")
@click.option("--seed", type=int, metavar="N", help="Seed of initial values, data and emulated scatter. [default: 0]")
@click.option("--iterations", type=int, metavar="N", help=f"Iterations to run; the rank is slow in {ONSET} to {END - 1}. [default: 72]")
@click.option("--tp", type=int, metavar="N", help="Tensor-parallel ranks of a stage. [default: 2]")
@click.option("--pp", type=int, metavar="N", help="Pipeline stages of a replica. [default: 2]")
@click.option("--dp", type=int, metavar="N", help="Replicas. [default: 2]")
@click.option("--num-microbatches", type=int, metavar="N", help="Micro-batches of an iteration, over all replicas. [default: 32]")
@output_options
@click.pass_context
def demo(
    context: click.Context,
    slow_rank: int | None,
    slow_factor: float | None,
    healthy: bool,
    bucketed: bool,
    seed: int | None,
    iterations: int | None,
    tp: int | None,
    pp: int | None,
    dp: int | None,
    num_microbatches: int | None,
    run_dir: str | None,
    as_json: bool,
    quiet: bool,
    exit_code: bool,
) -> int:
    """Train a small model on this machine's CPU, with one rank made slow for a while.

    Real processes, real collectives, a real model; only the device's pace is emulated. The slow rank is found, proven,
    relieved of micro-batches, and given them back when it has recovered. The report is a page that opens offline.
    """
    config = override(
        JobConfig(),
        job={"seed": seed, "iterations": iterations, "bucketed": bucketed},
        layout={"tp": tp, "pp": pp, "dp": dp, "num_microbatches": num_microbatches},
        run={"dir": run_dir},
    )
    if not healthy:
        config = override(config, fault=[_fault(config, slow_rank, slow_factor)])
    elif slow_rank is not None or slow_factor is not None:
        raise UserError("--healthy makes no rank slow; remove --slow-rank and --slow-factor, or --healthy")
    return carry_out(config, command=command_line(context), as_json=as_json, quiet=quiet, exit_code=exit_code)


def _fault(config: JobConfig, rank: int | None, factor: float | None) -> Fault:
    if config.job.iterations <= ONSET:
        raise UserError(f"--iterations is {config.job.iterations}, but the demo's fault begins at {ONSET}; give {END + 18} or more, or --healthy")
    grid = config.layout
    hit = min(SLOW_RANK, grid.tp * grid.pp * grid.dp - 1) if rank is None else rank
    return Fault("slow", Where("rank", (hit,)), SLOW_FACTOR if factor is None else factor, Iterations(ONSET), Iterations(END - ONSET))
