"""A world in which supervisor and ranks are their real machines, and everything else is a few facts: pipes, who has begun what, who is dead.

`World.moves` lists whatever can happen next, in every order that pipes, processes and faults allow; each move checks the invariants as it is
made. The director here, what a layout's ranks hold, and which end a fault may lead to are worked out from layouts alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protocol_truth import Truth
from protocol_values import BACK, BENCHED, EXACT, STOP, Slot, State, Wrong, bits_of, covers, cut_covers, ring

from lurcher.layout import Layout
from lurcher.runtime.messages import Ack, BenchDone, Border, Digests
from lurcher.runtime.protocol import rank_values as rv
from lurcher.runtime.protocol import supervisor_values as sv
from lurcher.runtime.protocol.supervisor import SupervisorMachine
from lurcher.runtime.reports import Resumption


class World(Truth):
    """The moves of a scenario."""

    def start(self) -> State:
        """All processes have begun to build."""
        scenario = self.scenario
        supervisor = self._keep(scenario.supervisor_machine(self._rules, scenario.layout, str, ring))
        slots = []
        for rank in range(max(scenario.layout.members) + 1):
            slots.append(self._new_slot(rank, scenario.layout, 0, joins=False) if rank in scenario.layout.members else Slot("away"))
        return State(supervisor, tuple(self._number(slot) for slot in slots), scenario.faults)

    # --- moves --------------------------------------------------------------------------------------------------------------------

    def moves(self, state: State) -> list[tuple[str, State]]:
        """Whatever can happen next; deadlines only where nothing else can, but for a fault. Raises Wrong where nobody can go on."""
        if state.ended == "died":
            return []
        cut_off = [move for rank in range(len(state.slots)) for move in self._rank_moves(state, rank, "partitioned")]
        found = list(self._ordinary(state))
        if not found and not state.ended and not state.leader_dead:
            found = list(self._late(state))  # whoever is cut off may be slower than any deadline, if others wait for it
        found += cut_off
        if not found:
            self._check_end(state)
            return []
        return found + (list(self._faults(state)) if state.faults and not state.ended and not state.leader_dead else [])

    def _check_end(self, state: State) -> None:
        slots = [self.slot(state, rank) for rank in range(len(state.slots))]
        if not state.ended and not state.leader_dead:
            raise Wrong("the supervisor waits for ever")
        for rank, slot in enumerate(slots):
            takes_part = slot.machine >= 0 and self.rank(slot).has_begun
            if slot.runs and takes_part:
                raise Wrong(f"rank {rank} waits for ever")
            if state.ended and takes_part and rank not in state.struck and slot.applied != self.scenario.num_iterations:
                raise Wrong(f"rank {rank} ends after {slot.applied} steps")

    def end_of(self, state: State) -> int:
        """How it ended, where it did."""
        return STOP if state.leader_dead or state.ended == "died" else BACK if state.went_back else EXACT

    def _ordinary(self, state: State) -> Iterator[tuple[str, State]]:
        for rank in range(len(state.slots)):
            yield from self._rank_moves(state, rank, "live")
        if state.leader_dead or state.ended:
            return
        for rank in range(len(state.slots)):
            slot = self.slot(state, rank)
            for event, rest in self._supervisor_events(state, rank, slot):
                spent = slot.spare is None and rest.spare is not None
                yield from self._supervisor_move(self._put(state, rank, rest)._replace(faults=state.faults - spent), event)
        if state.fencing and not any(self.slot(state, rank).runs for rank in state.fencing):
            yield from self._supervisor_move(state._replace(fencing=frozenset()), sv.Fenced(state.fencing))

    def _rank_moves(self, state: State, rank: int, status: str) -> Iterator[tuple[str, State]]:
        slot = self.slot(state, rank)
        if slot.status == status:
            for event, rest in self._rank_events(state, rank, slot):
                yield from self._rank_move(state, rank, rest, event)

    def _supervisor_events(self, state: State, rank: int, slot: Slot) -> Iterator[tuple[Any, Slot]]:
        """What the supervisor can be told of a rank, and what is left of the rank's slot then."""
        if slot.up and slot.status != "partitioned":
            heard, rest = sv.Heard(rank, self._values[slot.up[0]]), slot._replace(up=slot.up[1:])
            yield heard, rest
            if self._may_repeat(state, slot):
                yield heard, rest._replace(spare=("up", slot.up[0]))
        if slot.spare and slot.spare[0] == "up":
            yield sv.Heard(rank, self._values[slot.spare[1]]), slot._replace(spare=None)
        if slot.status == "dead":
            killed = rank in state.struck
            yield sv.Exited((sv.Exit(rank, killed, "was killed" if killed else "failed"),)), slot._replace(status="gone")
        if slot.status == "ended" and not slot.up:
            yield sv.Closed(rank), slot._replace(status="gone")

    def _rank_events(self, state: State, rank: int, slot: Slot) -> Iterator[tuple[Any, Slot]]:
        """What can happen to a rank, and what is left of its slot then."""
        if slot.act >= 0:
            act, rest = self._values[slot.act], slot._replace(act=-1)
            key, peers = self._key(slot, act), [self.slot(state, peer) for peer in self._peers(slot, act, rank)]
            if key is None or all(key in peer.entered for peer in peers):
                yield self._done(rank, rest, act)
            if key is not None and (slot.down or any(self._is_lost(peer, key) for peer in peers)):
                yield rv.PeerLost("gone"), rest
            elif peers and "link" in self.scenario.kinds and state.faults and self.rank(slot).has_begun and not state.ended:
                yield rv.PeerLost("a link failed"), rest._replace(entered=rest.entered[:-1])
            return
        if slot.down:
            heard, rest = rv.Heard(self._values[slot.down[0]]), slot._replace(down=slot.down[1:])
            yield heard, rest
            if self._may_repeat(state, slot):
                yield heard, rest._replace(spare=("down", slot.down[0]))
        elif state.leader_dead:
            yield rv.SupervisorGone(), slot
        if slot.spare and slot.spare[0] == "down":
            yield rv.Heard(self._values[slot.spare[1]]), slot._replace(spare=None)
        if state.leader_dead or slot.status == "partitioned":
            yield rv.LeaseOver(1.0), slot

    def _may_repeat(self, state: State, slot: Slot) -> bool:
        return "again" in self.scenario.kinds and state.faults > 0 and slot.spare is None

    def _done(self, rank: int, rest: Slot, act: Any) -> tuple[Any, Slot]:
        match act:
            case rv.Compute(generation, iteration):
                ack = Ack(rank, generation, iteration, 0.0, 0.0, 0.0, True, 0, 0, b"", b"")
                return rv.Done(ack), rest._replace(computed=(generation, iteration))
            case rv.Digest(generation, iteration):
                return rv.Done(Digests(rank, generation, iteration, {})), rest
            case rv.Bench(generation, iteration):
                return rv.Done(BenchDone(rank, generation, iteration, (BENCHED,))), rest
            case rv.KeepCopy(iteration):
                return rv.Done(), rest._replace(latest=(iteration, self.rank(rest).generation), can_confirm=True)
        return rv.Done(), rest

    def _peers(self, slot: Slot, act: Any, rank: int) -> tuple[int, ...]:
        """Whom a rank needs for an act."""
        match act:
            case rv.Compute():
                ranks = self.rank(slot).target.ranks
            case rv.Build(layout, _) | rv.Prepare(layout, _, _):
                ranks = layout.ranks
            case rv.KeepCopy(_, holders):
                return tuple(sorted({ward for ward, holder in holders if holder == rank} | {holder for ward, holder in holders if ward == rank}))
            case _:
                return ()
        return tuple(other for other in ranks if other != rank) if rank in ranks else ()

    @staticmethod
    def _is_lost(peer: Slot, key: tuple[str, int, int]) -> bool:
        """Whether a peer's side of the connections for an act is gone; a hung one's is there, but connecting to it ends at some time."""
        if peer.status in ("dead", "ended", "gone", "away") or peer.dropped >= key[1]:
            return True
        return peer.status == "hung" and key[0] == "prepare" and key not in peer.entered

    def _rank_move(self, state: State, rank: int, slot: Slot, event: Any) -> Iterator[tuple[str, State]]:
        """A rank takes an event; with a fault at hand, it may also be struck between any two of the effects."""
        spent = (slot.spare is not None and self.slot(state, rank).spare is None) or event == rv.PeerLost("a link failed")
        state = state._replace(faults=state.faults - spent)
        number, effects = self._on(slot.machine, self._event(event))
        slot = slot._replace(machine=number)
        stepped = state.stepped
        for done, effect in enumerate(effects):
            if done and state.faults and slot.status == "live" and not state.ended and not state.leader_dead:
                yield from self._strikes(self._put(state, rank, slot)._replace(stepped=stepped), rank)
            if isinstance(effect, rv.Step):
                stepped = max(stepped, self.rank(slot).generation)
            slot = self._carry_out(state, rank, slot, effect)
        yield f"rank {rank} {type(event).__name__}", self._put(state, rank, slot)._replace(stepped=stepped)

    def _supervisor_move(self, state: State, event: Any) -> Iterator[tuple[str, State]]:
        """The supervisor takes an event; with a fault at hand, it may also die between any two of the effects."""
        name = f"supervisor {type(event).__name__}"
        events = [event]
        while events:
            number, effects = self._on(state.supervisor, self._event(events.pop(0)))
            state = state._replace(supervisor=number)
            for effect in effects:
                if "leader" in self.scenario.kinds and state.faults:
                    yield f"{name}, dies before {type(effect).__name__}", self._without_leader(state)
                state, answer = self._effect(state, effect)
                if answer is not None:
                    events.append(answer)
        yield name, state

    def _effect(self, state: State, effect: Any) -> tuple[State, Any]:
        match effect:
            case sv.Send(rank, message):
                slot = self.slot(state, rank)
                if slot.status in ("live", "hung"):
                    return self._put(state, rank, slot._replace(down=(*slot.down, self._lasting(message)))), None
            case sv.AskBorder(iteration, absent):
                return state, sv.Bordered(self.scenario.borders.get(iteration, Border()), tuple(sorted(absent & set(self.scenario.returning))))
            case sv.Compare():
                return state, sv.Compared("")
            case sv.Fence(ranks):
                return self._fence(state, ranks)
            case sv.AskDirector():
                resumption = self._direct(effect)
                if resumption is not None and resumption.cut is not None:
                    state = state._replace(went_back=True)
                    if effect.iteration - resumption.cut.iteration > self.scenario.copy_every + len(state.struck):
                        raise Wrong(f"from iteration {effect.iteration} back to {resumption.cut.iteration}")
                return state, sv.Chosen(resumption)
            case sv.Start(rank, layout, iteration):
                return self._put(state, rank, self._new_slot(rank, layout, iteration, joins=True)), None
            case sv.End(how, words):
                if how == "died" and " sent " in words:
                    raise Wrong(words)
                return state._replace(ended=how), None
        return state, None

    def _fence(self, state: State, ranks: frozenset[int]) -> tuple[State, Any]:
        for rank in ranks:
            slot = self.slot(state, rank)
            if rank not in state.struck and slot.status not in ("dead", "ended", "gone"):
                if state.innocent:
                    raise Wrong(f"rank {rank} is fenced, and nothing is wrong with it")
                state = self._struck(state, rank)
            if slot.status != "partitioned":
                state = self._put(state, rank, Slot("gone", slot.machine, entered=slot.entered, applied=slot.applied))
        if any(self.slot(state, rank).runs for rank in ranks):
            return state._replace(fencing=state.fencing | ranks), None
        return state, sv.Fenced(ranks)

    def _direct(self, asked: sv.AskDirector) -> Resumption | None:
        """This world's director: on from the present state if it is all there, else from the cut if that is, else not."""
        lost = frozenset(asked.lost)
        left = tuple(rank for rank in asked.layout.members if rank not in lost)
        if covers(asked.layout, lost):
            return Resumption(self.scenario.without(left, asked.layout))
        if asked.cut is not None and cut_covers(asked.cut, lost):
            return Resumption(self.scenario.without(left, asked.layout), asked.cut)
        return None

    def _late(self, state: State) -> Iterator[tuple[str, State]]:
        """Deadlines."""
        machine = self.supervisor(state)
        if machine.in_grace:
            yield from self._supervisor_move(state, sv.GraceOver())
        elif machine.waiting:
            yield from self._supervisor_move(state, self._overdue(state))

    def _overdue(self, state: State) -> sv.Overdue:
        alive = sorted(self.supervisor(state).alive)
        return sv.Overdue(tuple((rank, sv.Progress(0, *self.slot(state, rank).progress, 0)) for rank in alive))

    # --- faults -------------------------------------------------------------------------------------------------------------------

    def _faults(self, state: State) -> Iterator[tuple[str, State]]:
        for rank in range(len(state.slots)):
            if self.slot(state, rank).status == "live":
                yield from self._strikes(state, rank)
        if "leader" in self.scenario.kinds:
            yield "the supervisor dies", self._without_leader(state)
        if "hasty" in self.scenario.kinds:
            machine, hurried = self.supervisor(state), state._replace(faults=state.faults - 1, innocent=False)
            if machine.phase == "start":
                hurried = hurried._replace(allowed=STOP)
            if machine.in_grace:
                yield from self._supervisor_move(hurried, sv.GraceOver())
            if machine.waiting:
                yield from self._supervisor_move(hurried, self._overdue(state))

    def _strikes(self, state: State, rank: int) -> Iterator[tuple[str, State]]:
        """All that can happen to one rank at this moment."""
        slot, kinds = self.slot(state, rank), self.scenario.kinds
        if self.scenario.victims and rank not in self.scenario.victims:
            return
        struck = self._struck(state._replace(faults=state.faults - 1), rank)
        left = Slot("dead", slot.machine, up=slot.up, entered=slot.entered, applied=slot.applied)
        if "kill" in kinds:
            yield f"rank {rank} is killed", self._put(struck, rank, left)
        if "hang" in kinds:
            yield f"rank {rank} hangs", self._put(struck, rank, slot._replace(status="hung"))
            if slot.act >= 0 and self._key(slot, self._values[slot.act]) == slot.entered[-1] and slot.entered[-1][0] != "copy":
                within = slot._replace(status="hung", entered=slot.entered[:-1], progress=(*slot.progress[:2], min(slot.progress[2], 0)))
                yield f"rank {rank} hangs within it", self._put(struck, rank, within)
        if "partition" in kinds:
            yield f"rank {rank} is cut off", self._put(struck, rank, slot._replace(status="partitioned", up=()))
        if "cut" in kinds:  # what is on its way is lost, and either end finds the pipe closed
            yield f"the pipe of rank {rank} ends", self._put(struck, rank, left._replace(status="ended", up=()))

    def _struck(self, state: State, rank: int) -> State:
        """Add what this may lead to, by what the ranks that are left hold of the layouts that may be in force."""
        machine = self.supervisor(state)
        struck = state.struck | {rank}
        off = frozenset(r for r in range(len(state.slots)) if r == rank or self.slot(state, r).status != "live")
        allowed = 0
        for layout in (machine.layout, machine.target or machine.layout):
            allowed |= self._ends(machine, layout, off)
        if machine.phase == "start":
            allowed |= STOP  # unless all are built, and on their way to say so
        if self.slot(state, rank).computed is not None and machine.ledger.iteration == self.scenario.num_iterations - 1:
            allowed |= EXACT  # its part is done
        if machine.border.stop:
            allowed |= EXACT | (0 if machine.alive - struck else STOP)
        return state._replace(struck=struck, allowed=sum({max(one, other) for one in bits_of(state.allowed) for other in bits_of(allowed)}))

    def _ends(self, machine: SupervisorMachine, layout: Layout, off: frozenset[int]) -> int:
        if not set(layout.members) - off:
            return STOP
        if covers(layout, off):
            return EXACT
        cuts = [cut for cut in (machine.complete, machine.latest, machine.chosen) if cut is not None]
        return sum({BACK if cut_covers(cut, off) else STOP for cut in cuts}) or STOP

    def _without_leader(self, state: State) -> State:
        """Nobody commits or fences any more; pipes end, or not even that is seen."""
        return state._replace(faults=state.faults - 1, leader_dead=True, allowed=STOP)

    def _put(self, state: State, rank: int, slot: Slot) -> State:
        slots = (*state.slots[:rank], self._number(slot), *state.slots[rank + 1 :])
        return State(state.supervisor, slots, *state[2:])
