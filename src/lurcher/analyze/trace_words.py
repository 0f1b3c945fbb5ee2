"""What a what-if analysis found, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from lurcher.localize.whatif import TraceAnalysis
from lurcher.localize.whatif_causes import Share
from lurcher.localize.whatif_workers import SlowWorker

SHARED_LENGTHS = 0.8
"""Forward and backward passes of a long sequence are long together: arXiv 2505.05713, section 5.3, takes a correlation of 0.9."""


def worker_name(dp: int, stage: int) -> str:
    """A worker's id in verdicts: `dp0/stage0`."""
    return f"dp{dp}/stage{stage}"


def ranks_words(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0 to 3`; empty where none are known."""
    if not ranks:
        return ""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def share_words(share: Share, analysis: TraceAnalysis) -> str:
    """One cause and what it costs."""
    step_s = analysis.causes.no_delay_s
    costs = f"{share.won_s:.3f} of {step_s:.3f} s a step ({share.won_s / step_s:.0%})"
    if share.cause == "stage":
        stage, factor = long_stage(analysis)
        last = "the last stage" if stage == analysis.num_stages - 1 else f"stage {stage}"
        return f"{last} has x{factor:.2f} the work of the others, in all {analysis.num_replicas} replicas alike: {costs}"
    if share.cause == "lengths":
        scatter, shared = analysis.causes.lengths_scatter, analysis.causes.lengths_shared
        if shared < SHARED_LENGTHS:
            return (
                f"micro-batches of one stage differ by {scatter:.0%}, but forward and backward passes not alike (correlation {shared:.2f}): {costs}"
            )
        return f"sequence lengths are uneven: micro-batches of one stage differ by {scatter:.0%}, forward and backward passes alike (correlation {shared:.2f}), {costs}"
    kinds = analysis.what_if
    won_s = kinds.no_delay_s.mean() - kinds.without_type_s.mean(axis=1)
    worst = max((i for i, name in enumerate(kinds.types) if "compute" not in name and name not in ("optimizer", "gc")), key=lambda i: float(won_s[i]))
    return f"transfers that take longer than the median of their kind, most of all {kinds.types[worst]}: {costs}"


def long_stage(analysis: TraceAnalysis) -> tuple[int, float]:
    """The stage with most work, and its work over the median of the others'."""
    stage = int(analysis.causes.stage_factor.argmax())
    return stage, float(analysis.causes.stage_factor[stage])


def slow_words(worker: SlowWorker, analysis: TraceAnalysis) -> tuple[str, ...]:
    """Why a worker is named."""
    forward, backward = (
        (phase[worker.stage, :, :, worker.first : worker.end].mean(axis=(0, 2))) for phase in (analysis.work.forward_s, analysis.work.backward_s)
    )
    others = [i for i in range(len(forward)) if i != worker.dp]
    name = worker_name(worker.dp, worker.stage)
    compared = f"stage {worker.stage} of the other {_count(worker.num_like, 'replica')} for the same work"
    sure = f"{worker.score:.0f} standard errors; the slowest of those is at x{worker.worst_other:.2f}"
    passes = f"its forward pass takes {forward[worker.dp]:.3f} s, theirs {forward[others].mean():.3f} s"
    return (
        f"{name} computes x{worker.slowdown:.2f} as long as {compared} ({sure})",
        f"{passes}; backward {backward[worker.dp]:.3f} s and {backward[others].mean():.3f} s",
    )


def replay_words(analysis: TraceAnalysis) -> str:
    """What the replay as a whole says."""
    found = analysis.what_if
    return (
        f"replayed without launch delays a step takes {found.no_delay_s.mean():.3f} s, with all alike {found.ideal_s:.3f} s: S x{found.slowdown:.3f};"
        f" M_W {found.m_w.share:.3f}, M_S {found.m_s.share:.3f}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
