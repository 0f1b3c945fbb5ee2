"""What became of the training's state: how often it was copied and at what cost, and whether it is what it would have been without faults."""

from __future__ import annotations

from lurcher.report.load import Facts
from lurcher.report.verdict_view import CopiesView, VerificationView
from lurcher.report.words import seconds, size


def state_lines(facts: Facts) -> list[str]:
    """Sentences; none where the state was neither copied nor verified."""
    if facts.verdict is None:
        return []
    copies, verification = facts.verdict.copies, facts.verdict.verification
    return [*([_copies(copies)] if copies else []), *([_verification(verification)] if verification else [])]


def _copies(copies: CopiesView) -> str:
    return (
        f"Copied {copies.num} times, with a pause of {seconds(copies.pause_s)} each, {copies.share:.1%} of the time;"
        f" the copies take {size(copies.most_bytes)} on the rank with most, {size(copies.total_bytes)} in all."
    )


def _verification(verification: VerificationView) -> str:
    return f"{'The same training' if verification.same else 'NOT the same training'} as without faults: {verification.reason}."
