"""What a rank and its supervisor say to each other. Tagged msgspec structs as MessagePack, over one pipe per rank."""

from __future__ import annotations

from multiprocessing.connection import Connection

import msgspec

from lurcher.config import JobConfig
from lurcher.layout import Layout
from lurcher.records import BenchResult
from lurcher.validate.rounds import Round


class Cut(msgspec.Struct, frozen=True):
    """The state of the training after `iteration` committed iterations, so that the next one to compute is `iteration`."""

    iteration: int
    layout: Layout
    """Under which it was taken."""
    holders: tuple[tuple[int, int], ...]
    """(rank, holder): the holder keeps a copy of the rank's state beside its own."""
    gone: tuple[int, ...] = ()
    """Ranks lost since: their processes are no more, and what they kept of it neither, even if a new one has their number."""


class Spec(msgspec.Struct, frozen=True):
    """All that a rank needs to start."""

    rank: int
    config: JobConfig
    layout: Layout
    store_host: str
    store_port: int
    iteration: int = 0
    """The first one to compute: as many optimizer steps were taken before it."""
    joins: bool = False
    """It starts in the midst of a job: it says that it is up, and waits for the layout in which it takes part."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    """Anything on the pipe."""


class Up(_Message, frozen=True):
    """Rank to supervisor: a process that was started in the midst of the job is there, and waits for a layout to join."""

    rank: int
    pid: int


class Ready(_Message, frozen=True):
    """Rank to supervisor: all that the generation's layout needs is there, connections and state; it waits for Go.

    `plan` is a hash of what the rank made of the order: who owns what, and which atoms move from whom to whom. Empty for a rank that has just come up.
    """

    rank: int
    pid: int
    generation: int
    plan: str = ""


class Ack(_Message, frozen=True):
    """Rank to supervisor: gradients of the iteration are complete and finite on this rank; it waits for the sealed decision.

    `events` is an EVENT array as bytes: what the rank did from `start_ns` to `end_ns`, its last acknowledgement to this one.
    `usage` are int64 pairs (real CPU ns, emulated ns), one a chunk and one with 0 for all else; empty without emulation.
    `moved_bytes` of state came from other ranks before this iteration, for a change of layout. `copy_s` is how long keeping a copy of the
    state took before it, 0 where none was due; all that are kept take `copy_bytes` of memory.
    """

    rank: int
    generation: int
    iteration: int
    loss: float
    grad_norm: float
    lr: float
    finite: bool
    start_ns: int
    end_ns: int
    events: bytes
    usage: bytes
    moved_bytes: int = 0
    copy_s: float = 0.0
    copy_bytes: int = 0


class BenchDone(_Message, frozen=True):
    """Rank to supervisor: the benchmarks that the border after `iteration` asked of it, as far as they could be done."""

    rank: int
    generation: int
    iteration: int
    results: tuple[BenchResult, ...]


class Digests(_Message, frozen=True):
    """Rank to supervisor: a hash of every slice it owns (parameters and moments), by slice name. `sketch` (see `sketch.py`) with the last ones only,
    where the state will be held against another run's."""

    rank: int
    generation: int
    iteration: int
    digests: dict[str, str]
    sketch: dict[str, tuple[float, ...]] = {}


class Failed(_Message, frozen=True):
    """Rank to supervisor: it cannot go on."""

    rank: int
    iteration: int
    reason: str


class Broken(_Message, frozen=True):
    """Rank to supervisor: a peer is gone, this rank has let go of its groups and waits for a layout without it.

    `generation` is that of the layout it last worked under or prepared for.
    """

    rank: int
    generation: int
    iteration: int
    reason: str


class Border(msgspec.Struct, frozen=True):
    """What happens between this iteration and the next: another layout, a benchmark, a digest, copies, or the end."""

    layout: Layout | None = None
    bench: tuple[int, ...] = ()
    digest: bool = False
    stop: bool = False
    copy: tuple[tuple[int, int], ...] = ()
    """(rank, holder): each member keeps its state as it is after the step, and sends it to its holder."""
    rounds: tuple[Round, ...] = ()
    """Links to benchmark: round by round, pairs of ranks."""

    @property
    def tested(self) -> frozenset[int]:
        """Ranks with a benchmark to do, alone or with another."""
        return frozenset((*self.bench, *(rank for one in self.rounds for pair in one for rank in pair)))


class Seal(_Message, frozen=True):
    """Supervisor to rank: (generation, iteration) is sealed COMMIT, so take the step; then the border. An ABORT is what Resume says."""

    generation: int
    iteration: int
    border: Border


class Go(_Message, frozen=True):
    """Supervisor to rank: leave the border and compute `iteration` under `generation`, for which all are ready."""

    generation: int
    iteration: int


class Resume(_Message, frozen=True):
    """Supervisor to rank: what was computed last does not count; get ready to compute `iteration` under `layout`.

    `lost` ranks hold nothing any more. With a `cut` everybody goes back to its state. To a rank that has just come up: take part from here.
    """

    layout: Layout
    lost: tuple[int, ...]
    iteration: int
    cut: Cut | None = None


class Stop(_Message, frozen=True):
    """Supervisor to rank: end now."""


FromRank = Up | Ready | Ack | BenchDone | Digests | Failed | Broken
ToRank = Seal | Go | Resume | Stop


def send(conn: Connection, message: FromRank | ToRank) -> None:
    """Write one message."""
    conn.send_bytes(msgspec.msgpack.encode(message))


def receive_from_rank(conn: Connection) -> FromRank:
    """Read one message of a rank; EOFError when it is gone."""
    return msgspec.msgpack.decode(conn.recv_bytes(), type=FromRank)


def receive_from_supervisor(conn: Connection) -> ToRank:
    """Read one message of the supervisor; EOFError when it is gone."""
    return msgspec.msgpack.decode(conn.recv_bytes(), type=ToRank)
