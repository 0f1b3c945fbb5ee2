"""A planning problem: a layout, the rates of its devices and links, and what is wrong with them. Read strictly from TOML.

[layout]    tp, pp, dp and so on; or [[replica]] entries that say who holds what
[rates]     what devices and links do when healthy (`lurcher.model.rates.Rates`)
[[fault]]   ranks or nodes that are slow or dead, links that are slow
[switch]    what a change costs
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lurcher.errors import UserError
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.model.rates import LinkRate, Rates
from lurcher.model.schedule import SCHEDULES
from lurcher.plan.moves import SwitchCosts
from lurcher.records import Cause

T = TypeVar("T", bound=msgspec.Struct)

GIVEN_BY_FAULTS = ("slowdown", "dead", "links", "places")
"""Fields of Rates that `[[fault]]` entries fill in, and the numbering of ranks."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is made for. `causes` are those of the faults; `remaining_iterations` is how long a plan has to pay off."""

    layout: Layout
    rates: Rates
    schedule: str = "1f1b"
    causes: tuple[Cause, ...] = ()
    num_atoms: int = 1
    costs: SwitchCosts = SwitchCosts()
    remaining_iterations: float = 10_000.0
    spare_nodes: int = 0


class LayoutTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[layout]`: the grid, with `rank = (replica * pp + stage) * tp + index`, or, with `[[replica]]` entries, its sizes only."""

    num_layers: int
    """Layers of the model, without embedding and head."""
    num_microbatches: int
    """Micro-batches of one iteration, over all replicas."""
    tp: int = 1
    """Ranks that share every layer of a stage."""
    pp: int = 1
    """Stages of a replica."""
    dp: int = 1
    """Replicas."""
    schedule: str = "1f1b"
    """Order of the passes in a stage."""
    num_atoms: int = 0
    """Smallest parts of a layer that a tensor rank can hold, such as KV groups; 0: 16 per rank of a stage, which leaves room to share unevenly."""
    standby: tuple[int, ...] = ()
    """Ranks that stand by."""
    spare_nodes: int = 0
    """Healthy nodes that a restart could get."""
    remaining_iterations: float = 10_000.0
    """Iterations left, over which a change has to pay off."""


class ReplicaTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[replica]]`: one replica, stage by stage."""

    microbatches: int
    """How many of the micro-batches it runs."""
    stages: tuple[tuple[int, ...], ...]
    """Ranks of each stage."""
    layers: tuple[int, ...]
    """How many layers each stage holds."""
    shares: tuple[tuple[int, ...], ...] = ()
    """Relative parts of the ranks of each stage; left out: equal."""


class FaultTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[fault]]`: one of `ranks`, `nodes`, `link` and `rank_link`, and one of `slowdown` and `dead`."""

    ranks: tuple[int, ...] = ()
    """Ranks that are hit."""
    nodes: tuple[int, ...] = ()
    """Nodes all of whose ranks are hit."""
    link: tuple[int, ...] = ()
    """Two nodes whose link is slow; one node: its network card, to all others."""
    rank_link: tuple[int, ...] = ()
    """Two ranks whose link is slow; one rank: its links to all others."""
    slowdown: float = 0.0
    """Observed over healthy time: 1.5 takes half as long again."""
    dead: bool = False
    """The ranks do no work any more."""
    cause: Cause | None = None
    """What is wrong; left out: compute, or communication for a link."""


def load_problem(path: Path) -> Problem:
    """Read a problem file; UserError in one line where it cannot be read or does not hold together."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give a problem file in TOML, or a run folder") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give a problem file in TOML, or a run folder") from None
    return problem_from_toml(text, source=str(path))


def problem_from_toml(text: str, *, source: str = "problem.toml") -> Problem:
    """Read a problem's text; `source` is named in errors."""
    try:
        return _problem(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source} is not valid TOML: {error}; correct that place") from None
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _problem(tables: Mapping[str, Any]) -> Problem:
    known = ("layout", "replica", "rates", "fault", "switch")
    for name in tables:
        if name not in known:
            raise UserError(f'unknown section "{name}"; {_hint(name, known)}')
    for name in ("layout", "rates"):
        if name not in tables:
            raise UserError(f"section [{name}] is missing; `lurcher plan` needs [layout] and [rates]")
    grid = _table(LayoutTable, tables["layout"], "layout")
    layout = _layout(grid, tables["layout"], _entries(ReplicaTable, tables.get("replica", []), "replica"))
    faults = _entries(FaultTable, tables.get("fault", []), "fault")
    healthy = _rates(tables["rates"])
    rates = _with_faults(healthy, faults, layout)
    causes = dict.fromkeys(fault.cause or ("communication" if fault.link or fault.rank_link else "compute") for fault in faults)
    most = max((stage.tp_size for _, _, stage in layout.stages()), default=1)
    return Problem(
        layout=layout,
        rates=rates,
        schedule=grid.schedule,
        causes=tuple(causes),
        num_atoms=grid.num_atoms or 16 * most,
        costs=_table(SwitchCosts, tables.get("switch", {}), "switch"),
        remaining_iterations=grid.remaining_iterations,
        spare_nodes=grid.spare_nodes,
    )


def _layout(grid: LayoutTable, given: Mapping[str, Any], replicas: tuple[ReplicaTable, ...]) -> Layout:
    if grid.schedule not in SCHEDULES:
        raise UserError(f"layout.schedule is {grid.schedule!r}; allowed are {', '.join(SCHEDULES)}: choose one of them")
    for name in ("num_atoms", "spare_nodes", "remaining_iterations"):
        if getattr(grid, name) < 0:
            raise UserError(f"layout.{name} is {getattr(grid, name)}; 0 is the least")
    if not replicas:
        plain = Layout.uniform(tp=grid.tp, pp=grid.pp, dp=grid.dp, num_layers=grid.num_layers, num_microbatches=grid.num_microbatches)
        return msgspec.structs.replace(plain, standby=grid.standby) if grid.standby else plain
    twice = [name for name in ("tp", "pp", "dp") if name in given]
    if twice:
        raise UserError(f"layout.{twice[0]} and [[replica]] both say who holds what; keep one of them")
    found = tuple(_replica(entry, f"replica {d}") for d, entry in enumerate(replicas))
    return Layout(grid.num_layers, grid.num_microbatches, found, tuple(grid.standby))


def _replica(entry: ReplicaTable, where: str) -> Replica:
    if len(entry.layers) != len(entry.stages):
        raise UserError(f"{where} has {len(entry.stages)} stages but {len(entry.layers)} counts of layers; give one count a stage")
    if entry.shares and len(entry.shares) != len(entry.stages):
        raise UserError(f"{where} has {len(entry.stages)} stages but shares for {len(entry.shares)}; give shares for every stage, or for none")
    stages, first = [], 0
    for s, (ranks, layers) in enumerate(zip(entry.stages, entry.layers, strict=True)):
        shares = entry.shares[s] if entry.shares else (1,) * len(ranks)
        if not ranks:
            raise UserError(f"{where} stage {s} has no ranks; a stage of a problem needs one, and dead ones are listed under [[fault]]")
        stages.append(Stage(ranks, shares, (LayerRange(first, first + layers),)))
        first += layers
    return Replica(tuple(stages), entry.microbatches)


def _rates(table: object) -> Rates:
    if not isinstance(table, Mapping):
        raise UserError("rates is no section; write [rates] and its keys below")
    for name in table:
        if name in GIVEN_BY_FAULTS:
            raise UserError(f"rates.{name} is not set here; say what is slow or dead in [[fault]] entries")
    return _table(Rates, table, "rates", hidden=GIVEN_BY_FAULTS)


def _with_faults(rates: Rates, faults: tuple[FaultTable, ...], layout: Layout) -> Rates:
    """The rates with what is slow and dead."""
    ranks = sorted((*layout.ranks, *layout.standby))
    on_node: dict[int, list[int]] = {}
    for rank in ranks:
        on_node.setdefault(rates.node(rank), []).append(rank)
    slowdown: dict[int, float] = {}
    dead: set[int] = set()
    links: list[LinkRate] = []
    known = set(ranks)
    for i, fault in enumerate(faults):
        _check_fault(fault, f"fault {i}", known, on_node)
        hit = [*fault.ranks, *(rank for node in fault.nodes for rank in on_node[node])]
        if fault.link:
            links.append(LinkRate(fault.link[0], fault.link[1] if len(fault.link) > 1 else -1, fault.slowdown))
        elif fault.rank_link:
            links.append(LinkRate(fault.rank_link[0], fault.rank_link[1] if len(fault.rank_link) > 1 else -1, fault.slowdown, "rank"))
        elif fault.dead:
            dead.update(hit)
        else:
            for rank in hit:
                slowdown[rank] = max(slowdown.get(rank, 0.0), fault.slowdown)
    if dead.issuperset(layout.ranks):
        raise UserError(f"all {len(layout.ranks)} working ranks are dead; nothing is left to plan with: restart the job on other nodes")
    return msgspec.structs.replace(rates, slowdown=slowdown, dead=tuple(sorted(dead)), links=tuple(links))


def _check_fault(fault: FaultTable, where: str, ranks: set[int], nodes: Mapping[int, object]) -> None:
    named = sum(bool(part) for part in (fault.ranks, fault.nodes, fault.link, fault.rank_link))
    if named != 1:
        raise UserError(f"{where} must name one of ranks, nodes, link and rank_link; it names {named or 'none'}")
    if fault.dead == (fault.slowdown != 0.0):
        raise UserError(f"{where} must say either slowdown = X, observed over healthy time, or dead = true")
    if not fault.dead and not 0 < fault.slowdown < float("inf"):
        raise UserError(f"{where} has slowdown {fault.slowdown}; it is observed over healthy time, above 0: a rank that does nothing is dead = true")
    link = fault.link or fault.rank_link
    if link and (fault.dead or len(link) > 2):
        raise UserError(f"{where} is about the link {list(link)}; a link has one or two ends, and a slowdown: a dead one is a slowdown of 1000")
    for rank in (*fault.ranks, *fault.rank_link):
        if rank not in ranks:
            raise UserError(f"{where} hits rank {rank}, but the layout has ranks {min(ranks)}..{max(ranks)}; choose one of them")
    for node in (*fault.nodes, *fault.link):
        if node not in nodes:
            raise UserError(
                f"{where} hits node {node}, but the layout has nodes {min(nodes)}..{max(nodes)} (rates.ranks_per_node); choose one of them"
            )


def _entries(kind: type[T], value: object, name: str) -> tuple[T, ...]:
    if not isinstance(value, list):
        raise UserError(f"{name} is no list of entries; write [[{name}]] and its keys below")
    return tuple(_table(kind, entry, f"{name} {i}") for i, entry in enumerate(value))


def _table(kind: type[T], table: object, name: str, hidden: Iterable[str] = ()) -> T:
    """`table` as a struct, strictly: unknown and missing keys and wrong types are one clear line each."""
    if not isinstance(table, Mapping):
        raise UserError(f"{name} is no section; write [{name}] and its keys below")
    fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name not in hidden}
    for key in table:
        if key not in fields:
            raise UserError(f'unknown key "{key}" in {name}; {_hint(key, fields)}')
    for key, field in fields.items():
        if field.required and key not in table:
            raise UserError(f"{name}.{key} is missing; it has no default")
    try:
        return msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise UserError(f"{name}{where.strip('`$') if where else ''}: {what}; see `lurcher plan --help`") from None


def _hint(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    return (f'did you mean "{near[0]}"? ' if near else "") + f"allowed: {', '.join(names)}"
