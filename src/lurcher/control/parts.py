"""What is watched for slowness and proven slow: a rank, by its number, or a link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lurcher.records import Component

Part = int | Component
"""A rank, or a link as a component."""


def part_of(component: Component) -> Part:
    """The part that a component is."""
    return component.ranks[0] if component.kind == "rank" else component


def component_of(part: Part) -> Component:
    """The component that a part is."""
    return Component.of_rank(part) if isinstance(part, int) else part


def part_name(part: Part) -> str:
    """For a sentence."""
    return f"rank {part}" if isinstance(part, int) else f"{part.kind} {part.id}"


def part_names(parts: Iterable[Part]) -> str:
    """Likewise, of several."""
    return ", ".join(map(part_name, parts))


def together(ranks: Mapping[int, float], links: Mapping[Component, float]) -> dict[Part, float]:
    """Figures of ranks and of links in one table."""
    found: dict[Part, float] = dict(ranks.items())
    found.update(links.items())
    return found


def in_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Ranks, then links."""
    return tuple(sorted(parts, key=lambda part: (not isinstance(part, int), component_of(part).ranks)))
