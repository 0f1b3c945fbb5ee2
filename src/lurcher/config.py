"""The job file: every key with its default, its unit and what is allowed. The only place that may read the environment.

A file with `[layout]` alone runs: the defaults are the demo's. Unknown keys are refused.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from lurcher.errors import UserError
from lurcher.faults import EXAMPLE, Fault, Iterations, fault_from_toml
from lurcher.layout import Layout

BackendName = Literal["local", "gloo", "nccl"]
MAX_RANKS = 131_072
"""Largest layout: beyond the biggest clusters there are, and a slip of the pen must not fill the memory."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the job file."""


class JobSection(_Section, frozen=True, kw_only=True):
    """`[job]`: what is trained, and for how long."""

    iterations: int = 72
    """Optimizer steps to run; iterations are numbered from 0."""
    seed: int = 0
    """Decides initial values, data and emulated scatter; the same seed gives the same training on every layout."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of parameters, gradients and moments."""
    corpus: str = "stdlib"
    """`stdlib` (the source files of the running Python), or the path of a text file or of a folder."""
    bucketed: bool = False
    """Documents of like length are batched into the same iteration, as length-bucketing loaders do: iterations then differ in work."""


class LayoutSection(_Section, frozen=True, kw_only=True):
    """`[layout]`: the grid. `num_microbatches` counts all replicas together."""

    tp: int = 2
    """Tensor parallel: ranks that share every layer of a stage."""
    pp: int = 2
    """Pipeline parallel: stages that each hold a part of the layers."""
    dp: int = 2
    """Data parallel: replicas of the model."""
    num_microbatches: int = 32
    """Micro-batches of one iteration, over all replicas."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Order of forward and backward passes in a stage."""
    ranks_per_node: int = 0
    """Ranks of an emulated node: rank r is on node r // ranks_per_node of this one host, and slow links between nodes are looked for. 0: all ranks on one node."""

    def node(self, rank: int) -> int:
        """The emulated node of a rank."""
        return rank // self.ranks_per_node if self.ranks_per_node else 0


class ModelSection(_Section, frozen=True, kw_only=True):
    """`[model]`: a Llama-style decoder over bytes. Atoms: `num_kv_heads` KV groups, `ffn_blocks` FFN blocks, vocabulary blocks."""

    num_layers: int = 0
    """Decoder layers; 0: two, or one a stage where there are more stages."""
    hidden: int = 64
    """Width of the residual stream."""
    num_heads: int = 16
    """Query heads; they divide `hidden`."""
    num_kv_heads: int = 8
    """Key and value heads; they divide `num_heads`. A KV group is the smallest part of attention that a rank can hold."""
    ffn_blocks: int = 8
    """Blocks of the feed-forward layer; a block is the smallest part that a rank can hold."""
    ffn_block_size: int = 16
    """Inner width of one feed-forward block."""
    vocab_block_size: int = 16
    """Rows of the vocabulary (256 bytes and an end mark) that move together; the last block is padded."""
    seq_len: int = 32
    """Tokens of a micro-batch: one sequence, packed with documents."""
    rope_base: float = 10000.0
    """Base of the rotary position angles; positions restart with every document."""
    tied: bool = False
    """Embedding and head share their rows."""


class OptimSection(_Section, frozen=True, kw_only=True):
    """`[optim]`: AdamW with a linear warm-up, then constant; the rate depends on the iteration only."""

    lr: float = 3e-3
    """Learning rate after the warm-up."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled decay of matrices; norms have none."""
    clip_norm: float = 1.0
    """Largest global gradient norm."""
    warmup_iterations: int = 10
    """Iterations over which the learning rate rises linearly."""


class PaceSection(_Section, frozen=True, kw_only=True):
    """`[pace]`: emulated device time. A layer's forward pass takes `token_us` a token plus `pair_ns` a token pair on a whole stage of one rank."""

    kind: Literal["emulated", "none"] = "emulated"
    """`emulated` pads every chunk to the time a device would take, so that a laptop shows a cluster's pipeline; `none` runs at host speed."""
    token_us: float = 750.0
    """Microseconds per token and layer."""
    pair_ns: float = 16500.0
    """Nanoseconds per pair of tokens of one document and layer: attention work."""
    backward_ratio: float = 2.0
    """Backward time over forward time."""
    head_layers: float = 0.05
    """Work of the output head in layers; all of it, there and back, is done in the backward chunk."""
    noise: float = 0.01
    """Relative scatter of a chunk's emulated time."""
    link_us: float = 0.0
    """Microseconds that a transfer between ranks of different nodes takes whatever its size (`layout.ranks_per_node` says which these are)."""
    link_mb_per_s: float = 0.0
    """Million bytes a second of a link between two nodes, one way. 0: bytes take no time."""

    @property
    def has_links(self) -> bool:
        """Whether a transfer between nodes takes emulated time."""
        return self.kind == "emulated" and (self.link_us > 0 or self.link_mb_per_s > 0)


class DetectSection(_Section, frozen=True, kw_only=True):
    """`[detect]`: two tiers; see DESIGN section 5."""

    suspect_iterations: int = 3
    """Slow iterations in a row that make a suspicion; it starts extra profiling only."""
    confirm_iterations: int = 6
    """Slow iterations among the last seven that confirm it; then training may pause for validation."""
    min_slowdown: float = 1.08
    """Smallest level that the fast path confirms; GREYHOUND verifies at 1.10, ResiHP at 1.25."""
    warmup_iterations: int = 3
    """First iterations of a run, left out of every baseline."""
    arm_iterations: int = 18
    """Points before the detector may speak."""
    rank_slowdown: float = 1.10
    """Smallest slowdown of a rank's own busy time that makes it a suspect (GREYHOUND: 10 % above the median)."""


PolicyName = Literal["observe", "rebalance", "greyhound", "resihp", "joint"]


class PlanSection(_Section, frozen=True, kw_only=True):
    """`[plan]`: what may be done."""

    policy: PolicyName = "rebalance"
    """`observe` finds, proves and recommends; `rebalance` also moves micro-batches; `greyhound` first moves micro-batches, then swaps nodes and brings
    stragglers together; `resihp` makes tensor groups smaller, then moves layers, then micro-batches; `joint` looks for the best of all that together."""
    min_gain: float = 1.03
    """A plan is accepted only above this predicted throughput gain over the present layout."""
    cooldown_iterations: int = 8
    """Iterations between two changes of the layout."""
    rho: float = 3.0
    """Most that acting too early or too late may cost, times the best decision in hindsight, for one remedy. 2: act once the loss reaches the cost.
    More: at any loss between 1 / (rho - 1) and rho - 1 times the cost, whichever suits how long such faults have lasted."""


class RunSection(_Section, frozen=True, kw_only=True):
    """`[run]`: where the records go, and how long a wait may take."""

    dir: str = ""
    """Run directory; empty: a new one under `lurcher-runs/`. A used one is refused."""
    start_deadline_s: float = 120.0
    """Longest wait for all ranks to be up."""
    step_deadline_s: float = 60.0
    """A rank that makes no progress for this long ends the job."""
    on_death: Literal["end", "recover"] = "end"
    """When a rank dies or hangs: `end` the job, or `recover`, which goes on with the others while they hold the whole model, or copies of it."""
    copy_every: int = 10
    """With `on_death = "recover"`: each rank keeps its state every so many iterations, and another rank's beside it, so that the job can go
    back to it, at most so far, when the last owner of a part of the model is lost. 0: never, and the job then ends. Takes memory for four states."""
    backend: BackendName = "local"
    """What carries tensors between ranks: `local` sockets beside gloo, or torch process groups for everything, on `gloo` or `nccl` (one GPU a rank)."""
    respawn: bool = False
    """With `on_death = "recover"`: start a lost rank's process again, which then stands by until a plan uses it; less often the more often it dies."""
    stop_deadline_s: float = 5.0
    """Longest wait for a rank to end when asked; then it is killed."""
    verify_every: int = 10
    """Owners of an atom compare digests every so many iterations; 0 never."""
    verify: bool = False
    """When the job is done, train it once more in one process, without a fault, and compare losses and state. Takes as long as the work itself."""


class JobConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole job file."""

    job: JobSection = JobSection()
    layout: LayoutSection = LayoutSection()
    model: ModelSection = ModelSection()
    optim: OptimSection = OptimSection()
    pace: PaceSection = PaceSection()
    detect: DetectSection = DetectSection()
    plan: PlanSection = PlanSection()
    run: RunSection = RunSection()
    fault: tuple[Fault, ...] = ()
    """`[[fault]]`: what goes wrong on purpose, each as `text = "slow rank 5 x1.8 from 20 to 60"` or key by key."""


def load_config(path: Path) -> JobConfig:
    """Read a job file; UserError in one line for a missing or unreadable file, bad TOML, an unknown key or a value out of range."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the job file in it, such as {path / 'job.toml'}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the path of a job file, or run `lurcher demo`, which needs none") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; give a job file in TOML") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from None
    return config_from_toml_text(text, source=str(path))


def config_from_toml_text(text: str, *, source: str = "job.toml") -> JobConfig:
    """Read a job file's text; `source` is named in errors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source} is not valid TOML: {error}; correct that place") from None
    return config_from_dict(table, source=source)


def config_from_dict(table: Mapping[str, Any], *, source: str = "job.toml") -> JobConfig:
    """Build and check a configuration from tables as TOML gives them; what is left out keeps its default."""
    try:
        return _with_tables(JobConfig(), table)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def override(config: JobConfig, *, fault: Iterable[Fault] | None = None, source: str = "command line", **sections: Mapping[str, Any]) -> JobConfig:
    """The configuration with some keys replaced, `override(config, job={"iterations": 20})`, checked like a file; None keeps a key."""
    kept = {name: {key: value for key, value in keys.items() if value is not None} for name, keys in sections.items()}
    if fault is not None:
        config = msgspec.structs.replace(config, fault=tuple(fault))
    try:
        return _with_tables(config, kept)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def settled(config: JobConfig) -> JobConfig:
    """The configuration with the values that follow from others filled in: what a job runs with, and what its records say."""
    if config.model.num_layers:
        return config
    model = msgspec.structs.replace(config.model, num_layers=max(2, config.layout.pp))
    return msgspec.structs.replace(config, model=model)


def layout_of(config: JobConfig) -> Layout:
    """The uniform layout that `[layout]` and `model.num_layers` describe."""
    grid = config.layout
    return Layout.uniform(tp=grid.tp, pp=grid.pp, dp=grid.dp, num_layers=settled(config).model.num_layers, num_microbatches=grid.num_microbatches)


def config_to_toml(config: JobConfig) -> str:
    """The whole configuration as a job file, defaults written out; `config_from_toml_text` reads it back to an equal value."""
    table = {name: msgspec.to_builtins(getattr(config, name)) for name in _sections()}
    if config.fault:
        table["fault"] = [{"text": str(fault)} for fault in config.fault]
    return tomli_w.dumps(table)


def allowed(section: str, key: str) -> str:
    """What `section.key` may be, in words: `a whole number of 1 or more`."""
    kind = get_type_hints(_sections()[section])[key]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{value}"' for value in get_args(kind))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}[kind]
    low, open_low, high = _RANGES.get(f"{section}.{key}", _ANY)
    words += f" above {low:g}" if open_low else f" of {low:g} or more" if low > -math.inf else ""
    return words + (f" and below {high:g}" if high < math.inf else "")


_ANY = (-math.inf, False, math.inf)
_ONE = (1, False, math.inf)
_ZERO = (0, False, math.inf)
_POSITIVE = (0, True, math.inf)
_ABOVE_ONE = (1, True, math.inf)
_FRACTION = (0, False, 1)
_RANGES: Mapping[str, tuple[float, bool, float]] = {
    # key: least value, whether the least itself is excluded, value that it must stay below
    **dict.fromkeys(("job.iterations", "layout.tp", "layout.pp", "layout.dp", "layout.num_microbatches"), _ONE),
    **dict.fromkeys((f"model.{key}" for key in ("hidden", "num_heads", "num_kv_heads", "seq_len")), _ONE),
    **dict.fromkeys(("model.ffn_blocks", "model.ffn_block_size", "model.vocab_block_size", "plan.min_gain"), _ONE),
    **dict.fromkeys(("detect.suspect_iterations", "detect.confirm_iterations"), _ONE),
    **dict.fromkeys(("model.num_layers", "job.seed", "optim.weight_decay", "optim.warmup_iterations", "detect.warmup_iterations"), _ZERO),
    **dict.fromkeys(("pace.token_us", "pace.pair_ns", "pace.head_layers", "plan.cooldown_iterations", "run.verify_every", "run.copy_every"), _ZERO),
    **dict.fromkeys(("layout.ranks_per_node", "pace.link_us", "pace.link_mb_per_s"), _ZERO),
    **dict.fromkeys(("model.rope_base", "optim.lr", "optim.eps", "optim.clip_norm", "pace.backward_ratio"), _POSITIVE),
    **dict.fromkeys(("run.start_deadline_s", "run.step_deadline_s", "run.stop_deadline_s"), _POSITIVE),
    **dict.fromkeys(("detect.min_slowdown", "detect.rank_slowdown"), _ABOVE_ONE),
    **dict.fromkeys(("optim.beta1", "optim.beta2", "pace.noise"), _FRACTION),
    "plan.rho": (2, False, math.inf),  # less cannot be promised
    "detect.arm_iterations": (2, False, math.inf),  # a scatter needs two points
}


def _sections() -> dict[str, type[_Section]]:
    return {name: kind for name, kind in get_type_hints(JobConfig).items() if name != "fault"}


def _with_tables(config: JobConfig, table: Mapping[str, Any]) -> JobConfig:
    sections = _sections()
    changed: dict[str, Any] = {}
    for name, value in table.items():
        if name == "fault":
            changed[name] = _faults(value)
        elif name not in sections:
            raise UserError(f'unknown section "{name}"; {_hint(name, (*sections, "fault"))}')
        elif not isinstance(value, Mapping):
            raise UserError(f"{name} is {_shown(value)}; expected a section: write [{name}] and its keys below")
        else:
            changed[name] = _section(getattr(config, name), name, value)
    config = msgspec.structs.replace(config, **changed)
    _check_whole(config)
    return config


def _section(present: _Section, name: str, table: Mapping[str, Any]) -> _Section:
    kinds = get_type_hints(type(present))
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in kinds:
            raise UserError(f'unknown key "{key}" in [{name}]; {_hint(key, kinds)}')
        try:
            values[key] = msgspec.convert(value, kinds[key])
        except msgspec.ValidationError:
            raise UserError(f"{name}.{key} is {_shown(value)}; expected {allowed(name, key)}") from None
        if not _within(f"{name}.{key}", values[key]):
            raise UserError(f"{name}.{key} is {_shown(value)}; expected {allowed(name, key)}")
    return msgspec.structs.replace(present, **values)


def _within(name: str, value: object) -> bool:
    if not isinstance(value, (int, float)):
        return True
    low, open_low, high = _RANGES.get(name, _ANY)
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return (value > low if open_low else value >= low) and value < high


def _faults(value: object) -> tuple[Fault, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise UserError(f'fault is {_shown(value)}; write [[fault]] and below it text = "{EXAMPLE}"')
    return tuple(fault_from_toml(entry) for entry in value)


def _check_whole(config: JobConfig) -> None:
    grid, detect = config.layout, config.detect
    world_size = grid.tp * grid.pp * grid.dp
    if world_size > MAX_RANKS:
        raise UserError(f"layout.tp x pp x dp is {world_size} ranks; {MAX_RANKS} is the most: lower one of them")
    layout_of(config)
    if config.pace.has_links and not grid.ranks_per_node:
        key = "link_us" if config.pace.link_us else "link_mb_per_s"
        raise UserError(
            f"pace.{key} is {getattr(config.pace, key):g}, but layout.ranks_per_node is 0: all ranks are on one node, and nothing crosses a link;"
            " set layout.ranks_per_node as well"
        )
    if detect.confirm_iterations < detect.suspect_iterations:
        raise UserError(
            f"detect.confirm_iterations is {detect.confirm_iterations}, below detect.suspect_iterations, {detect.suspect_iterations}; a suspicion comes first"
        )
    if config.run.respawn and config.run.on_death == "end":
        raise UserError('run.respawn is true, but run.on_death is "end", and then nobody waits for a lost rank; set run.on_death = "recover" as well')
    for fault in config.fault:
        if max(fault.where.ranks) >= world_size:
            raise UserError(f'fault "{fault}" hits rank {max(fault.where.ranks)}, but the layout has ranks 0..{world_size - 1}; choose one of them')
        if isinstance(fault.onset, Iterations) and fault.onset.n >= config.job.iterations:
            raise UserError(f'fault "{fault}" begins after the last of job.iterations = {config.job.iterations}; raise that, or begin earlier')


def _hint(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    guess = f'did you mean "{near[0]}"? ' if near else ""
    return f"{guess}allowed: {', '.join(names)}"


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, float) else msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= 60 else text[:57] + "..."
