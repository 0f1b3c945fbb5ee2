"""The protocol under every order of events, with every fault at every moment: what must always hold does, and every job ends as it may.

What must hold is in `protocol_world`: nobody steps without a COMMIT, or in an old generation, or twice; nobody begins before all are ready; nobody
waits for ever; whoever is fenced is at fault; survivors end with every iteration, or all go back to one cut, or the job ends cleanly.
"""

from __future__ import annotations

import msgspec
import pytest
from protocol_values import BACK, EXACT, STOP, Scenario, State, Wrong
from protocol_world import World

from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.runtime.messages import Ack, Border, Failed, Go, Ready, Resume, Seal, ToRank
from lurcher.runtime.protocol import rank_values as rv
from lurcher.runtime.protocol import supervisor_values as sv
from lurcher.runtime.protocol.losses import most_behind
from lurcher.runtime.protocol.rank import RankMachine
from lurcher.runtime.protocol.supervisor import SupervisorMachine

LAYERS = 2
Ranks = tuple[int, ...]


def explore(scenario: Scenario) -> tuple[World, set[State], dict[int, int]]:
    """Every state that can be reached, and how often each end was; Wrong with the moves that led to what must not be."""
    world = World(scenario)
    start = world.start()
    came: dict[State, tuple[State | None, str]] = {start: (None, "start")}
    todo, ends = [start], dict.fromkeys((EXACT, BACK, STOP), 0)
    while todo:
        state = todo.pop()
        try:
            moves = world.moves(state)
            if not moves:
                end = world.end_of(state)
                ends[end] += 1
                if not end & state.allowed:
                    raise Wrong(f"ends as {end}, allowed is {state.allowed}")
        except (Wrong, ValueError) as error:
            raise Wrong(f"{error}, after: {trail(came, state)}") from error
        for name, following in moves:
            if following not in came:
                came[following] = (state, name)
                todo.append(following)
    return world, set(came), ends


def trail(came: dict[State, tuple[State | None, str]], state: State | None) -> str:
    names = []
    while state is not None:
        state, name = came[state]
        names.append(name)
    return "; ".join(reversed(names))


# --- layouts ---------------------------------------------------------------------------------------------------------------------


def stage(rank: int, first: int, end: int) -> Stage:
    return Stage((rank,), (1,), (LayerRange(first, end),))


def all_alike(ranks: Ranks, _: Layout | None = None) -> Layout:
    """Every rank is a replica of its own."""
    counts = [4 // len(ranks) + (i < 4 % len(ranks)) for i in range(len(ranks))]
    return Layout(LAYERS, 4, tuple(Replica((stage(rank, 0, LAYERS),), count) for rank, count in zip(ranks, counts, strict=True)))


def one_works(ranks: Ranks, _: Layout | None = None) -> Layout:
    """The first rank does everything."""
    return Layout(LAYERS, 4, (Replica((stage(ranks[0], 0, LAYERS),), 4),), standby=ranks[1:])


def two_stages(ranks: Ranks, _: Layout | None = None) -> Layout:
    """Two ranks share the layers; the others stand by."""
    if len(ranks) == 1:
        return one_works(ranks)
    return Layout(LAYERS, 4, (Replica((stage(ranks[0], 0, 1), stage(ranks[1], 1, LAYERS)), 4),), standby=ranks[2:])


TWO_BY_TWO = Layout.uniform(tp=1, pp=2, dp=2, num_layers=LAYERS, num_microbatches=4)
ANY = ("kill", "hang", "cut", "partition", "link", "hasty", "leader")
# Where ranks are alike one victim is enough: the last, for what nothing tells apart is named in the order of the ranks.
SCENARIOS = {
    "two alike, all that can happen": Scenario(all_alike((0, 1)), 3, all_alike, (*ANY, "again")),
    "two stages with copies": Scenario(two_stages((0, 1)), 3, two_stages, (*ANY, "again"), copy_every=1),
    "two stages with copies, two faults": Scenario(two_stages((0, 1)), 3, two_stages, ("kill", "hang"), 2, copy_every=1),
    "three alike": Scenario(all_alike((0, 1, 2)), 2, all_alike, ANY, victims=(2,)),
    "three alike, a message comes twice": Scenario(all_alike((0, 1, 2)), 3, all_alike, ("again",), 2),
    "a message comes twice around a death": Scenario(all_alike((0, 1)), 2, all_alike, ("again", "kill"), 2, victims=(1,)),
    "three alike, two deaths": Scenario(all_alike((0, 1, 2)), 1, all_alike, ("kill",), 2, victims=(1, 2)),
    "three alike, two hangs or cut pipes": Scenario(all_alike((0, 1, 2)), 1, all_alike, ("hang", "cut"), 2, victims=(1, 2)),
    "a benchmark and digests": Scenario(
        all_alike((0, 1, 2)), 2, all_alike, ("kill", "hang"), borders={0: Border(bench=(0,), rounds=(((0, 2),),))}, verify_every=1, victims=(1, 2)
    ),
    "less work for two": Scenario(all_alike((0, 1, 2)), 2, all_alike, ANY, borders={0: Border(one_works((0, 1, 2)))}, victims=(0, 2)),
    "more work for two": Scenario(one_works((0, 1, 2)), 2, all_alike, ("kill", "hang"), borders={0: Border(all_alike((0, 1, 2)))}),
    "copies on three": Scenario(two_stages((0, 1, 2)), 3, two_stages, ("kill", "hang"), copy_every=2),
    "one comes back": Scenario(all_alike((0, 1)), 4, all_alike, ("kill", "hang"), returning=(0, 1)),
    "one comes back and goes again": Scenario(all_alike((0, 1)), 4, all_alike, ("kill",), 2, returning=(1,), victims=(1,)),
    "four ranks": Scenario(TWO_BY_TWO, 1, two_stages, ("kill", "hang"), victims=(3,)),
}


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_order_of_events_with_every_fault(name: str) -> None:
    scenario = SCENARIOS[name]
    _, _, ends = explore(scenario)
    assert ends[EXACT]
    assert bool(ends[BACK]) == bool(scenario.copy_every)
    assert bool(ends[STOP]) == (scenario.kinds != ("again",))


def test_whoever_comes_back_takes_part_again() -> None:
    world, states, _ = explore(SCENARIOS["one comes back"])
    again = [s for s in states if s.struck == {1} and s.ended == "done" and world.slot(s, 1).applied == 4]
    assert again
    assert all(world.supervisor(s).layout.standby == (1,) for s in again)
    with_none = [s for s in states if s.struck == {1} and s.ended == "done" and world.slot(s, 1).applied != 4]
    assert with_none  # dying late leaves no time to come back


# --- the exploration can fail ------------------------------------------------------------------------------------------------------


class StepsBeforeTheSeal(RankMachine):
    def _done(self, plan: str) -> rv.RankEffect:
        return (rv.Step(self.iteration),) if self.phase == "computing" and not super()._done(plan) else super()._done(plan)


class ObeysAnySeal(RankMachine):
    def _heard(self, message: ToRank) -> tuple:
        if isinstance(message, Seal) and self.phase == "waits for the seal":
            message = msgspec.structs.replace(message, generation=self.generation, iteration=self.iteration)
        return super()._heard(message)


class GoesAtAnyWord(RankMachine):
    def _heard(self, message: ToRank) -> tuple:
        if isinstance(message, Go) and self.phase == "waits for go":
            message = Go(self.target.generation, self.iteration)
        return super()._heard(message)


class ResumesTwice(RankMachine):
    def _resume(self, order: Resume) -> tuple:
        return super()._resume(order) if order.layout.generation != self.target.generation else (rv.Prepare(order.layout, order.lost, order.cut),)


class HoldsOnToConnections(RankMachine):
    """A rank that has lost a peer, and waits without letting the others go."""

    def _peer_lost(self, reason: str) -> tuple:
        return tuple(effect for effect in super()._peer_lost(reason) if not isinstance(effect, rv.Abandon))


class SaysNothing(RankMachine):
    """A rank that has lost a peer, and does not say so."""

    def _peer_lost(self, reason: str) -> tuple:
        return super()._peer_lost(reason)[:1]


class GoesBeforeAllAreReady(SupervisorMachine):
    def _ready(self, rank: int, message: Ready) -> tuple:
        found = super()._ready(rank, message)
        if not found and self.phase in ("switch", "resume") and self.ready:
            self.ready = self.alive
            return self.advance()
        return found


class SealsAtTheFirstWord(SupervisorMachine):
    def _acknowledged(self, rank: int, ack: Ack) -> tuple:
        for other in self.ledger.ranks:
            self.ledger = self.ledger.acknowledge(other, ack.generation, ack.iteration)
        return super()._acknowledged(rank, ack)


class CountsOldWords(SupervisorMachine):
    def _acknowledged(self, rank: int, ack: Ack) -> tuple:
        return super()._acknowledged(rank, msgspec.structs.replace(ack, generation=self.ledger.generation, iteration=self.ledger.iteration))


class DoesNotWaitForTheLease(SupervisorMachine):
    def lose(self, ranks: frozenset[int], words: str) -> tuple:
        effects = super().lose(ranks, words)
        return (*effects, *self.fenced(self.unfenced)) if self.phase == "fence" else effects


class NamesAWaiter(SupervisorMachine):
    def hangs(self, progress: tuple[tuple[int, sv.Progress], ...]) -> tuple:
        ahead = {rank: sv.Progress(*(-value for value in how_far)) for rank, how_far in progress}
        return super().hangs(tuple(ahead.items()))


class TakesBrokenForHanging(SupervisorMachine):
    def hangs(self, progress: tuple[tuple[int, sv.Progress], ...]) -> tuple:
        self.broken = ()
        return super().hangs(progress)


class CountsOnSilence(SupervisorMachine):
    """Waits for who has said that it is broken, too."""

    @property
    def in_grace(self) -> bool:
        return bool(self.failed)


class TrustsTheLatestCopy(SupervisorMachine):
    def _copy(self, iteration: int) -> tuple[tuple[int, int], ...]:
        holders = super()._copy(iteration)
        self.complete, self.latest = self.latest or self.complete, None
        return holders


class ForgetsToGoBack(SupervisorMachine):
    def choose(self, resumption: sv.Resumption | None) -> tuple:
        effects = super().choose(resumption)
        self.resume_at = self.ledger.iteration
        return effects


class LeavesTheJoinerOut(SupervisorMachine):
    """Lets the others go on before the rank that comes back is ready."""

    def advance(self) -> tuple:
        if self.phase == "switch":
            self.ready |= self.alive - self.ledger.ranks
        return super().advance()


MUTANTS: list[tuple[type, Scenario, str]] = [
    (StepsBeforeTheSeal, SCENARIOS["two alike, all that can happen"], "without a COMMIT"),
    (ObeysAnySeal, SCENARIOS["a message comes twice around a death"], "without a COMMIT"),
    (GoesAtAnyWord, SCENARIOS["less work for two"]._replace(kinds=("again",)), "is not ready"),
    (ResumesTwice, SCENARIOS["a message comes twice around a death"], ""),
    (HoldsOnToConnections, SCENARIOS["two alike, all that can happen"], "nothing is wrong with it"),
    (SaysNothing, SCENARIOS["two alike, all that can happen"], "nothing is wrong with it"),
    (GoesBeforeAllAreReady, SCENARIOS["less work for two"], "is not ready"),
    (SealsAtTheFirstWord, SCENARIOS["two alike, all that can happen"], ""),
    (CountsOldWords, SCENARIOS["two alike, all that can happen"], ""),
    (DoesNotWaitForTheLease, SCENARIOS["three alike"], ""),
    (NamesAWaiter, SCENARIOS["two alike, all that can happen"], "nothing is wrong with it"),
    (TakesBrokenForHanging, SCENARIOS["more work for two"]._replace(kinds=("hang",)), "nothing is wrong with it"),
    (TrustsTheLatestCopy, SCENARIOS["two stages with copies"], "has not kept"),
    (ForgetsToGoBack, SCENARIOS["two stages with copies"], ""),
    (LeavesTheJoinerOut, SCENARIOS["one comes back"], "is not ready"),
]


@pytest.mark.parametrize(("machine", "scenario", "said"), MUTANTS, ids=[machine.__name__ for machine, _, _ in MUTANTS])
def test_a_wrong_machine_is_caught(machine: type, scenario: Scenario, said: str) -> None:
    field = "rank_machine" if issubclass(machine, RankMachine) else "supervisor_machine"
    with pytest.raises(Wrong) as caught:
        explore(scenario._replace(**{field: machine}))
    assert said in str(caught.value)


def test_at_the_start_the_silent_one_is_named_not_who_gave_up_waiting_for_it() -> None:
    machine = SupervisorMachine(
        sv.Rules(5, recovers=True), Layout.uniform(tp=1, pp=1, dp=3, num_layers=1, num_microbatches=3), "rank {}".format, lambda _: ()
    )
    for rank in (2, 0):
        machine.on(sv.Heard(rank, Failed(rank, 0, "waited to connect")))
    (end,) = machine.on(sv.GraceOver())
    assert end.how == "died" and end.words == "rank 1 did not come up; rank 2 failed in iteration 0: waited to connect"
    machine, _ = told_of(("aa", "aa"))
    machine.on(sv.Heard(1, Failed(1, 1, "no memory")))
    fence, *_ = machine.on(sv.GraceOver())
    assert fence == sv.Fence(frozenset({1})) and machine.why == "rank 1 failed in iteration 1: no memory"


def told_of(plans: tuple[str, str]) -> tuple[SupervisorMachine, tuple]:
    """A machine that has ordered a layout, and what it does when its two ranks are ready with these hashes of what they made of it."""
    layout = Layout.uniform(tp=1, pp=1, dp=2, num_layers=1, num_microbatches=2)
    machine = SupervisorMachine(sv.Rules(5, recovers=True), layout, "rank {}".format, lambda _: ())
    for rank in (0, 1):
        machine.on(sv.Heard(rank, Ready(rank, 1, 0)))
    for rank in (0, 1):
        machine.on(sv.Heard(rank, Ack(rank, 0, 0, 0.0, 0.0, 0.0, True, 0, 0, b"", b"")))
    machine.on(sv.Bordered(Border(layout.with_split((2, 0))), ()))
    effects = [effect for rank in (0, 1) for effect in machine.on(sv.Heard(rank, Ready(rank, 1, 1, plans[rank])))]
    return machine, tuple(effects)


def test_ranks_that_make_different_moves_of_one_order_do_not_go_on() -> None:
    machine, effects = told_of(("aa", "aa"))
    assert machine.phase == "compute" and machine.layout.split == (2, 0)
    machine, effects = told_of(("aa", ""))  # one that has just come up has nothing to compare
    assert machine.phase == "compute"
    machine, effects = told_of(("aa", "bb"))
    assert machine.phase == "over" and machine.layout.split == (1, 1)
    (end,) = effects
    assert end.how == "died" and "rank 0 and rank 1 made different moves out of the order for generation 1" in end.words


def test_most_behind_is_the_absent_one() -> None:
    """Whoever is seen to wait is not; then by generation, iteration, chunk, and the last sign."""
    progress = (
        (0, sv.Progress(0, 1, 4, 2, 9)),
        (1, sv.Progress(0, 0, 5, 7, 20)),
        (2, sv.Progress(0, 0, 5, 7, 10)),
        (3, sv.Progress(0, 0, 4, 9, 30)),
        (4, sv.Progress(8, 0, 0, 0, 0)),
    )
    assert most_behind({0, 1, 2, 3, 4}, progress) == 3
    assert most_behind({0, 1, 2, 4}, progress) == 2
    assert most_behind({0, 4}, progress) == 0
    assert most_behind({4}, progress) == 4
