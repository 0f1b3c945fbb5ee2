"""What is true of the ranks in the world of `protocol_world`, whatever their machines believe: what each effect does, and when it must not happen."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from protocol_values import Scenario, Slot, State, Wrong

from lurcher.layout import Layout
from lurcher.runtime.protocol import rank_values as rv
from lurcher.runtime.protocol import supervisor_values as sv
from lurcher.runtime.protocol.rank import RankMachine
from lurcher.runtime.protocol.supervisor import SupervisorMachine


class Truth:
    """What machines become, as numbers, and what a rank's effects do to it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._values: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._by_identity: dict[int, int] = {}
        self._steps: dict[tuple[int, int], tuple[int, tuple[Any, ...]]] = {}
        self._rules = sv.Rules(scenario.num_iterations, True, scenario.verify_every, scenario.copy_every)

    def supervisor(self, state: State) -> SupervisorMachine:
        return self._values[state.supervisor]

    def slot(self, state: State, rank: int) -> Slot:
        return self._values[state.slots[rank]]

    def rank(self, slot: Slot) -> RankMachine:
        return self._values[slot.machine]

    # --- values as numbers --------------------------------------------------------------------------------------------------------

    def _number(self, value: Any, key: Any = None) -> int:
        number = self._numbers.setdefault(value if key is None else key, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def _lasting(self, value: Any) -> int:
        """The number of a value that is kept anyway, such as a message in a remembered effect."""
        number = self._by_identity.get(id(value))
        if number is None:
            number = self._by_identity[id(value)] = self._number(value, (type(value), msgspec.msgpack.encode(value)))
            self._numbers[id(value), number] = number
            self._values.append(value)  # so that nothing else gets its identity
        return number

    def _keep(self, machine: Any) -> int:
        facts = tuple(value for name, value in vars(machine).items() if name not in ("rules", "name_of", "holders_of"))
        return self._number(machine, (type(machine), facts))

    def _on(self, machine: int, event: int) -> tuple[int, tuple[Any, ...]]:
        """What a machine becomes and wants, worked out once for each state and event."""
        key = machine, event
        if key not in self._steps:
            changed = copy.copy(self._values[machine])
            effects = changed.on(self._values[event])
            self._steps[key] = self._keep(changed), effects
        return self._steps[key]

    def _event(self, event: Any) -> int:
        return self._number(event, (type(event), msgspec.msgpack.encode(event)))

    # --- a rank's effects ---------------------------------------------------------------------------------------------------------

    def _new_slot(self, rank: int, layout: Layout, iteration: int, *, joins: bool) -> Slot:
        machine = self.scenario.rank_machine(rank, 1, layout, iteration, recovers=True, joins=joins)
        effects = machine.begin()
        slot = Slot("live", self._keep(machine))
        for effect in effects:
            slot = self._carry_out(None, rank, slot, effect)
        return slot

    def _carry_out(self, state: State | None, rank: int, slot: Slot, effect: Any) -> Slot:
        """One effect of a rank, with what must be true of it."""
        match effect:
            case rv.Send(message):
                return slot if slot.status == "partitioned" else slot._replace(up=(*slot.up, self._lasting(message)))
            case rv.Step(iteration):
                assert state is not None
                return self._step(state, slot, iteration)
            case rv.Switch():
                assert state is not None
                return self._switch(state, slot)
            case rv.Discard():
                return slot._replace(computed=None)
            case rv.Abandon():
                return slot._replace(dropped=slot.connected, staged=None)
            case rv.End(how, reason):
                if how == "failed" and slot.status == "live" and self.rank(slot).has_begun and state is not None and not state.leader_dead:
                    raise Wrong(f"rank {rank} fails: {reason}")
                return Slot("ended" if how != "failed" else "dead", slot.machine, up=slot.up, entered=slot.entered, applied=slot.applied)
        return self._begin(rank, slot, effect)

    def _begin(self, rank: int, slot: Slot, act: Any) -> Slot:
        """An act is under way: its part in what several do together is done, unless it is struck before."""
        match act:
            case rv.Build(_, iteration):
                slot = slot._replace(applied=iteration, staged=None, complete=None, latest=None)
            case rv.Prepare(layout, lost, cut):
                steps = slot.applied if cut is None else cut.iteration
                slot = slot._replace(staged=(layout.generation, steps), can_confirm=slot.can_confirm and not lost)
                if cut is not None and cut.iteration and (cut.iteration, cut.layout.generation) not in (slot.complete, slot.latest):
                    raise Wrong(f"rank {rank} is to go back to a cut that it has not kept")
            case rv.KeepCopy():
                slot = slot._replace(latest=None, can_confirm=False)
            case rv.Compute(_, iteration):
                if slot.applied != iteration:
                    raise Wrong(f"rank {rank} computes iteration {iteration} after {slot.applied} steps")
        key = self._key(slot, act)
        if key is not None:
            kind, generation, iteration = key
            progress = (generation, iteration or self.rank(slot).iteration, 1 if kind == "compute" else -1)
            slot = slot._replace(entered=(*slot.entered[-1:], key), connected=generation, progress=progress)
        return slot._replace(act=self._lasting(act))

    def _key(self, slot: Slot, act: Any) -> tuple[str, int, int] | None:
        """What names an act that several ranks do together: kind, generation, iteration. None for what a rank does alone."""
        match act:
            case rv.Compute(generation, iteration):
                return "compute", generation, iteration
            case rv.Build(layout, _) | rv.Prepare(layout, _, _):
                return "prepare", layout.generation, 0
            case rv.KeepCopy(iteration):
                return "copy", self.rank(slot).generation, iteration
        return None

    def _step(self, state: State, slot: Slot, iteration: int) -> Slot:
        machine = self.rank(slot)
        generation = machine.generation
        if self.supervisor(state).ledger.sealed(generation, iteration) != "COMMIT":
            raise Wrong(f"rank {machine.rank} steps iteration {iteration} of generation {generation} without a COMMIT")
        if slot.computed != (generation, iteration) or slot.applied != iteration:
            raise Wrong(f"rank {machine.rank} steps iteration {iteration} on {slot.computed}, after {slot.applied} steps")
        if generation < state.stepped:
            raise Wrong(f"rank {machine.rank} steps in generation {generation}, others have in {state.stepped}")
        slot = slot._replace(applied=iteration + 1, computed=None)
        return slot._replace(complete=slot.latest, latest=None) if slot.latest and slot.can_confirm else slot

    def _switch(self, state: State, slot: Slot) -> Slot:
        machine = self.rank(slot)
        if slot.staged is None or slot.staged[0] != machine.target.generation:
            raise Wrong(f"rank {machine.rank} switches to what it has not prepared")
        generation, steps = slot.staged
        for other in machine.target.members:
            their = self.slot(state, other)
            if not their.runs:
                continue
            prepares = their.act >= 0 and self._key(their, self._values[their.act]) == ("prepare", generation, 0)
            if prepares or self.rank(their).target.generation < generation:
                raise Wrong(f"rank {machine.rank} goes on in generation {generation}, for which rank {other} is not ready")
        if steps != slot.applied:  # it went back: a cut that came later is of what will be computed again
            of_cut = next((kept for kept in (slot.complete, slot.latest) if kept is not None and kept[0] == steps), None)
            slot = slot._replace(complete=of_cut, latest=None)
        return slot._replace(staged=None, applied=steps, computed=None)
