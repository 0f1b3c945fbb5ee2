"""The pure heart of a job: iterations and benchmarks in; orders for the next border and decisions with reasons out.

OBSERVE -> SUSPECT -> VALIDATE -> MITIGATE. It calls detect, localize, validate's judge and plan, and does nothing itself:
no clock, no process, no file. It learns only from what it is told, so the same object drives a live job, a test and a simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lurcher.config import DetectSection, PlanSection
from lurcher.control.episode import Episode
from lurcher.control.mitigation import Mitigation
from lurcher.control.newcomers import Newcomers
from lurcher.control.orders import BenchReport, Message, Outbox, PlanReport, RanksLost, StepSummary
from lurcher.control.parts import Part, component_of, in_order, part_name, part_names, part_of, together
from lurcher.control.validation import NOTHING, BenchOrder, Validation
from lurcher.control.view import View
from lurcher.control.watchlist import Watchlist
from lurcher.detect.default import NAME, DefaultDetector
from lurcher.layout import Layout
from lurcher.localize.cohort import suspects
from lurcher.localize.links import Nodes
from lurcher.plan.problem import Problem
from lurcher.records import Cause, ChangePoint, Decision, Finding, Reconfiguration, Suspicion

BASELINE_BORDER = 2
"""Iterations after the warm-up before every rank's benchmark baseline is taken."""
UNEXPLAINED_ITERATIONS = 20
"""A slowdown that no part explains becomes an event once it lasts this long. Until then every iteration looks for a suspect
anew; if the level comes back before, nothing was worth an event (a busy host slows all ranks alike for a while)."""

NEW_LEVEL = 1.12
"""After a change the iterations take so much of what is expected: more than the prediction for another layout is off."""


class Coordinator:
    """State of one job's diagnosis. `step` is a function of what it was told so far, and of nothing else.

    `num_atoms` are the parts of a layer that tensor ranks can share, for plans beyond moving micro-batches. `nodes`: where the ranks are, if
    the links between them are to be looked at.
    """

    def __init__(
        self,
        detect: DetectSection,
        plan: PlanSection,
        layout: Layout,
        schedule: str,
        *,
        emulated: bool,
        num_atoms: int = 1,
        nodes: Nodes | None = None,
    ) -> None:
        self._detect = detect
        self.view = View(detect, schedule, layout, nodes)
        self.watchlist = Watchlist()
        self.newcomers = Newcomers()
        self.mitigation = Mitigation(plan, layout, schedule, num_atoms)
        self.episodes: list[Episode] = []
        self._validation = Validation(detect, emulated=emulated)
        self._detector = DefaultDetector(detect)
        self._baseline_iteration = detect.warmup_iterations + BASELINE_BORDER
        self._now_s = 0.0
        self._iteration = -1
        self._decisions: list[Decision] = []
        self._keep = ""
        self._unexplained: ChangePoint | None = None
        self._benched = False
        self._rebased: int | None = None
        self.state = "observe"
        self.reason = "learning what a healthy iteration costs"

    @property
    def reconfigurations(self) -> tuple[Reconfiguration, ...]:
        """Plans carried out so far."""
        return self.mitigation.done

    def step(self, now_s: float, message: Message) -> Outbox:
        """Take one message; `now_s` is only written into the decisions."""
        self._now_s, self._iteration, self._decisions, self._keep = now_s, message.iteration, [], ""
        bench = NOTHING
        layout: Layout | None = None
        problem: Problem | None = None
        if isinstance(message, BenchReport):
            self._take_benchmark(message)
        elif isinstance(message, PlanReport):
            self._say(self.mitigation.take(message))
        elif isinstance(message, RanksLost):
            self._take_loss(message)
        else:
            bench = self._take_iteration(message)
            layout, problem = self._mitigate(message) if not bench else (None, None)
        return Outbox(bench.ranks, bench.rounds, layout, problem, tuple(self._decisions), self._keep)

    # One iteration

    def _take_iteration(self, step: StepSummary) -> BenchOrder:
        """Everything that one iteration tells; returns what to benchmark at the next border."""
        self._note_new_layout(step)
        if step.iteration < self._detect.warmup_iterations:
            return NOTHING
        settled = not self.watchlist and not self._open_episodes() and self._unexplained is None and self.state == "observe"
        sample, residuals = self.view.add(step, self.watchlist.slowdown, self.watchlist.links, settled=settled)
        self.watchlist.observe(together(self.view.ratios, self.view.link_ratios(self.watchlist.links, step.iteration)))
        for episode in self._open_episodes()[-1:]:  # what is lost is counted once, for the event that came last
            episode.add(sample)
        if step.iteration == self._baseline_iteration:
            return self._validation.ask_baseline(step.layout.ranks, self.view.transfers.used() if self.view.transfers is not None else ())
        bench = NOTHING
        for iteration, residual in residuals:
            change = self._detector.update(residual, iteration)
            if change is not None and not bench:
                bench = self._take_change(change, step)
        bench = bench or self._check_new_level(step)
        if self.state == "suspect" and self._detector.state not in ("suspect", "worse"):
            self._rest("the suspicion passed before it could be confirmed")
        if bench or self._validation.busy:
            return bench
        return self._explain(step) or self._recheck_healed(step) or self._test_newcomers(step)

    def _note_new_layout(self, step: StepSummary) -> None:
        if self._benched and step.pause_s:
            self.mitigation.note_validation(step.pause_s)
        self._benched = False
        done, joined = self.mitigation.observe_layout(step)
        self.view.rehome(self.mitigation.home)
        if joined:
            self.newcomers.come(joined, step.iteration)
            self._decide("note", f"{part_names(joined)} came to the job and stands by; to be tested before it gets work")
            self._rebase(self._iteration)
        if done is not None:
            self._decide("reconfiguration", done.reason, done)
            self._rebase(self._iteration)
            for watched in self.watchlist:
                if watched.part not in step.layout.ranks:
                    self.watchlist.postpone(watched.part, step.iteration)

    def _take_change(self, change: ChangePoint, step: StepSummary) -> BenchOrder:
        """A change point of the job's residual: start looking, or ask for proof, or note the end of a period that has no culprit."""
        self._decide("change_point", _say_change(change), change)
        if change.tier == "suspect":
            if change.direction == "slower":
                self._enter("suspect", f"iterations look slower since {change.iteration}; watching closely")
                self._keep = "suspect"
            return NOTHING
        if change.direction == "faster":
            self._end_unattributed(change)
            return NOTHING
        self._keep = "slow"
        return self._localize(change, step)

    def _rebase(self, iteration: int) -> None:
        """The layout or what is expected of it is another: the detector learns the level anew, from `iteration` on."""
        self._detector.rebase()
        self._rebased = iteration

    def _check_new_level(self, step: StepSummary) -> BenchOrder:
        """A fault that began while the detector learned a new level is part of that level; its rank stands out all the same."""
        if self._rebased is None or self._detector.state == "learning":
            return NOTHING
        since, self._rebased = self._rebased, None
        level = self._detector.level
        if level < NEW_LEVEL:
            return NOTHING
        change = ChangePoint(since, step.iteration, 1.0, level, level, "slower", "confirmed", NAME, level)
        found, _ = self._suspects(change, step)
        if not found or self._validation.busy:
            return NOTHING
        self._decide("change_point", _say_change(change), change)
        return self._accuse(change, found, step)

    def _localize(self, change: ChangePoint, step: StepSummary) -> BenchOrder:
        """Who is it? Suspects are to be tested; a change without any waits for one, or for its end."""
        found, reason = self._suspects(change, step)
        if found:
            return self._accuse(change, found, step)
        for episode in self._open_episodes()[-1:]:  # what is slow already became slower, or a part hidden by it did
            episode.slowdown = max(episode.slowdown, change.slowdown)
            episode.evidence.append(f"from iteration {change.iteration} on x{change.slowdown:.2f} of the level before")
        if not self._open_episodes() and self._unexplained is None:
            self._unexplained = change
        self._decide("note", reason)
        self._rest(reason)
        return NOTHING

    def _suspects(self, change: ChangePoint, step: StepSummary) -> tuple[tuple[Suspicion, ...], str]:
        own = self.view.recent_ratios(since=change.iteration)
        known = {r: ratio for r, ratio in own.items() if r not in self.watchlist}
        per_unit, waits = self.view.recent_per_unit(), self.view.recent_wait_share()
        flows = self.view.flows(change.iteration, self.watchlist.links)
        return suspects(known, per_unit, step.layout, self.view.noise, self._detect.rank_slowdown, flows, waits)

    def _accuse(self, change: ChangePoint, found: Sequence[Suspicion], step: StepSummary) -> BenchOrder:
        """A new event, for another component is another event; then the proof."""
        for suspicion in found:
            self._decide("suspicion", "; ".join(suspicion.evidence), suspicion)
        self.episodes.append(Episode(change, found, self.view.history))
        self._unexplained = None
        self._keep = "slow"
        self._enter("validate", f"testing {_names(found)} at the next border")
        return self._validation.ask_proof(found, step.layout, self.view.links_like([part_of(s.component) for s in found]))

    def _explain(self, step: StepSummary) -> BenchOrder:
        """Look again for the part behind a slowdown that had none; after a while it is an event without a suspect."""
        change = self._unexplained
        if change is None:
            return NOTHING
        found, reason = self._suspects(change, step)
        if found:
            return self._accuse(change, found, step)
        if step.iteration - change.detected_iteration >= UNEXPLAINED_ITERATIONS:
            self.episodes.append(Episode(change, (), self.view.history))
            self._unexplained = None
            self._decide("note", f"slow for {step.iteration - change.iteration + 1} iterations now, and {reason}")
        return NOTHING

    def _end_unattributed(self, change: ChangePoint) -> None:
        self._unexplained = None
        for episode in self._open_episodes():
            if not episode.validated:
                episode.close(change.iteration - 1, f"the level came back by itself at iteration {change.iteration}")
        if not self._validation.busy:
            self._rest("the level came back by itself")

    # Benchmarks

    def _take_benchmark(self, report: BenchReport) -> None:
        self._benched = True
        purpose, findings, reason = self._validation.take(report)
        if purpose == "baseline":
            self._decide("bench", reason)
            return
        for finding in findings:
            self._decide("finding", finding.reason, finding)
        if purpose == "proof":
            self._take_proof(findings, reason)
        else:
            self._take_recovery(findings)

    def _take_proof(self, findings: Sequence[Finding], reason: str) -> None:
        proven = [f for f in findings if f.proven]
        episode = self._open_episodes()[-1] if self._open_episodes() else None
        if episode is not None:
            episode.findings += tuple(findings)
        if not proven:
            # The detector stays where it is: if the level comes back by itself, that ends the period.
            self._rest(f"no suspect is slow in its benchmark, so there is not enough evidence to blame one ({reason})")
            return
        since, parts = episode.onset if episode else 0, {part_of(f.component): f for f in proven}
        links = {part: finding.slowdown for part, finding in parts.items() if not isinstance(part, int)}
        worst = sorted(links, key=lambda link: -links[link])[:1]  # what crosses several slow links is as slow as the slowest of them
        own = together(self.view.recent_ratios(since), self.view.link_ratios(worst, since))
        for part, finding in parts.items():
            self.watchlist.add(part, max(1.0, own.get(part, finding.slowdown)))
        self.mitigation.charge(self.view.lost_since(episode.onset) if episode else 0.0)
        self._enter("mitigate", f"{part_names(parts)} proven slow")
        self._rebase(self._iteration)

    def _recheck_healed(self, step: StepSummary) -> BenchOrder:
        shown: set[Part] = {*step.layout.ranks, *self.view.known_links(self.watchlist.links, step.iteration)}
        healed, idle = self.watchlist.healed(step.iteration), self.watchlist.idle(step.iteration, shown)
        if not healed and not idle:
            return NOTHING
        if healed:
            own = " or ".join(dict.fromkeys("busy" if isinstance(part, int) else "transfer" for part in healed))
            self._decide("note", f"{part_names(healed)} works at a healthy pace again by its own {own} time; testing it at the next border")
        tested = in_order({*healed, *idle})
        for part in tested:  # whatever the benchmark says, or fails to say, is not asked again at once
            self.watchlist.postpone(part, step.iteration)
        return self._validation.ask_recovery(tested, step.layout, self.view.links_like(tested))

    def _take_recovery(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            part = part_of(finding.component)
            if isinstance(part, int) and part in self.newcomers:
                self._take_newcomer(part, finding)
                continue
            if finding.proven:
                self.watchlist.still_slow(part, self._iteration)
                continue
            end = max(self.view.last_slow(part), self.watchlist.last_test(part))
            self.watchlist.remove(part)
            self._rebase(self._iteration)  # it is expected to be as fast as before from now on
            if isinstance(part, int) and part not in self.mitigation.home.ranks:
                self.newcomers.recovered(part)
            self._close_healed(part, end)
        self._rest("every part that was tested is at its healthy pace")

    def _test_newcomers(self, step: StepSummary) -> BenchOrder:
        due = self.newcomers.due(step.iteration, step.layout.standby)
        return self._validation.ask_recovery(due, step.layout) if due else NOTHING

    def _take_newcomer(self, rank: int, finding: Finding) -> None:
        if not finding.proven:
            self.newcomers.passed(rank)
            self._decide("note", f"rank {rank} is as fast as it was: it may work again")

    def _close_healed(self, part: Part, end: int) -> None:
        for episode in self.episodes:
            if episode.is_open and episode.parts and not any(one in self.watchlist for one in episode.parts):
                episode.close(end, f"{part_name(part)} is back at its healthy pace from iteration {end + 1} on, and its benchmark agrees")
                self.mitigation.learn(episode.causes, episode.lasted_s)

    # Deaths

    def _take_loss(self, loss: RanksLost) -> None:
        """Ranks are gone: what was suspected of them is over, and the layout without them is what is healthy from now on."""
        for part in [watched.part for watched in self.watchlist]:
            if not set(loss.ranks).isdisjoint(component_of(part).ranks):
                self.watchlist.remove(part)  # a link that lost an end cannot be tested any more
        for episode in self._open_episodes():
            if episode.parts and not any(part in self.watchlist for part in episode.parts):
                episode.close(loss.iteration - 1, f"{part_names(in_order(episode.parts))} left the job")
        if self._validation.cancel():
            self._baseline_iteration = loss.iteration + BASELINE_BORDER
        self._unexplained = None
        self.newcomers.gone(loss.ranks)
        self.mitigation.rehome(loss.done)
        self.view.rehome(self.mitigation.home)
        self._decide("reconfiguration", loss.done.reason, loss.done)
        self._rest(f"going on without {part_names(loss.ranks)}")
        self._rebase(self._iteration)

    # Mitigation

    def _mitigate(self, step: StepSummary) -> tuple[Layout | None, Problem | None]:
        if self._validation.busy or not self.view.ready:
            return None, None
        self.watchlist.settle()
        causes: dict[Cause, None] = dict.fromkeys(cause for episode in self._open_episodes() for cause in episode.causes)
        order = self.mitigation.consider(step, self.view, self.watchlist, tuple(causes), self.newcomers)
        self._say(order.said)
        if order.layout is not None:
            self._keep = self._keep or ("slow" if self.watchlist else "recovered")
        return order.layout, order.problem

    # Small things

    def _open_episodes(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode.is_open]

    def _rest(self, reason: str) -> None:
        """Nothing more to find out for now: back to where the proven ranks leave the job."""
        if self.watchlist:
            self._enter("mitigate", f"{part_names(w.part for w in self.watchlist)} still slow")
        else:
            self._enter("observe", reason)

    def _say(self, said: Sequence[tuple[str, str, Any]]) -> None:
        for kind, reason, value in said:
            self._decide(kind, reason, value)

    def _enter(self, state: str, reason: str) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            self._decide("state", f"{state}: {reason}")

    def _decide(self, kind: Any, reason: str, value: Any = None) -> None:
        self._decisions.append(Decision(self._iteration, self._now_s, kind, reason, msgspec.to_builtins(value)))


def _say_change(change: ChangePoint) -> str:
    word = "confirmed" if change.tier == "confirmed" else "suspected"
    return (
        f"{word}: {change.direction} since iteration {change.iteration}, x{change.slowdown:.2f}"
        f" ({change.before_s:.3f} -> {change.after_s:.3f} of the expected time)"
    )


def _names(found: Sequence[Suspicion]) -> str:
    return ", ".join(f"{s.component.kind} {s.component.id}" for s in found)
