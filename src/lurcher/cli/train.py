"""`lurcher train`: run a job file on the resilient runtime."""

from __future__ import annotations

from pathlib import Path

import click

from lurcher.cli.jobs import carry_out, check_faults, command_line, output_options
from lurcher.config import layout_of, load_config, override
from lurcher.control.chaos import draw_faults
from lurcher.faults import parse_fault


@click.command(short_help="Train a job file; find, prove and go around slow parts.")
@click.argument("job", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="TEXT",
    help='Something that goes wrong on purpose, such as "slow rank 5 x1.8 from 20 to 60": iterations 20 to 59, or seconds with 12s. '
    "Repeatable; added to those of the file.",
)
@click.option(
    "--chaos",
    type=int,
    metavar="SEED",
    help="Faults drawn from this seed over all iterations: ranks that slow down, flap, die or hang. Going on without the lost ones is switched on.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="When it is done, train the job once more in one process without faults, and compare losses and state; exit code 5 where they differ.",
)
@click.option("--pace", type=click.Choice(["emulated", "none"]), help="Emulate a device's time, or run at host speed.")
@click.option("--seed", type=int, metavar="N", help="Seed of initial values, data and emulated scatter.")
@click.option("--iterations", type=int, metavar="N", help="Iterations to run.")
@output_options
@click.pass_context
def train(
    context: click.Context,
    job: Path,
    faults: tuple[str, ...],
    chaos: int | None,
    verify: bool,
    pace: str | None,
    seed: int | None,
    iterations: int | None,
    run_dir: str | None,
    as_json: bool,
    quiet: bool,
    exit_code: bool,
) -> int:
    """Train the job that JOB.toml describes. Options win over the file.

    While it trains, slow ranks are found, proven by a benchmark, and given fewer micro-batches; the training itself stays the same.
    """
    config = load_config(job)
    config = override(config, job={"seed": seed, "iterations": iterations}, pace={"kind": pace}, run={"dir": run_dir})
    drawn = () if chaos is None else draw_faults(chaos, layout_of(config).ranks, config.job.iterations)
    added = (*config.fault, *map(parse_fault, faults), *drawn)
    config = override(config, fault=added, run={"on_death": None if chaos is None else "recover", "verify": verify or None})
    check_faults(config)
    for fault in () if quiet else drawn:
        click.echo(f"chaos: {fault}", err=True)
    return carry_out(config, command=command_line(context), as_json=as_json, quiet=quiet, exit_code=exit_code)
