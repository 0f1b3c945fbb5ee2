"""Every group of one generation, owned by one object, aborted and dropped together.

The groups are made directly from a store, without torch's global default group, so that a generation leaves nothing behind in the
process. Whatever interrupts a wait in one of them ends the generation: all of them are aborted before the wait raises.
"""

from __future__ import annotations

import msgspec
from torch.distributed import PrefixStore, Store

from lurcher.config import ModelSection
from lurcher.errors import LurcherError
from lurcher.layout import Layout
from lurcher.runtime.backend import Backend, Group, Link, Patience
from lurcher.runtime.hops import partners
from lurcher.runtime.owners import cut_slices, owner_sets


class Membership(msgspec.Struct, frozen=True):
    """The groups that a layout needs, as lists of ranks: all that decides whether built groups fit a layout."""

    world: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]
    links: tuple[tuple[int, ...], ...]
    owners: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: ModelSection, layout: Layout) -> Membership:
        """World, who gathers together, whom each rank exchanges with directly, owner sets of two ranks and more."""
        stages = tuple(stage.ranks for _, _, stage in layout.stages())
        links = tuple(partners(layout, rank) for rank in layout.ranks)
        sets = owner_sets(cut_slices(model, layout))
        return cls(layout.ranks, stages, links, tuple(owners for owners in sets if len(owners) > 1))

    def torch_groups(self) -> list[tuple[int, ...]]:
        """World and owner sets, each set of ranks once, in an order that is the same on all ranks."""
        return sorted({ranks for ranks in (self.world, *self.owners) if len(ranks) > 1})


class Groups:
    """The groups that `rank` belongs to in one generation, made by `backend`. A job of one rank has none and needs no store.

    Raises what `Backend.group` raises where a rank does not come; then nothing is left open.
    """

    def __init__(self, model: ModelSection, layout: Layout, rank: int, store: Store | None, backend: Backend, patience: Patience) -> None:
        self._open = True
        self._model = model
        self._membership = Membership.of(model, layout)
        self._interrupted = patience.interrupted
        self._handles: dict[tuple[int, ...], Group] = {}
        self._links: Link | None = None
        try:
            self._make(layout, rank, store, backend.fresh(), patience._replace(interrupted=self._ends))
        except BaseException:
            self.close()
            raise

    def _make(self, layout: Layout, rank: int, store: Store | None, backend: Backend, patience: Patience) -> None:
        mine = [(number, ranks) for number, ranks in enumerate(self._membership.torch_groups()) if rank in ranks]
        peers = partners(layout, rank)
        if store is None:
            if mine or peers:
                raise LurcherError(f"a layout of {len(layout.ranks)} ranks needs a store to meet at")
            return
        for number, ranks in mine:
            self._handles[ranks] = backend.group(ranks, rank, PrefixStore(f"gen{layout.generation}/{number}", store), patience)
        if peers:
            where = layout.position(rank)
            together = layout.replicas[where.dp].stages[where.pp].ranks
            self._links = backend.links(rank, peers, together, PrefixStore(f"gen{layout.generation}/links", store), patience)

    @property
    def world(self) -> Group | None:
        """All working ranks; None in a job of one rank."""
        return self._handles.get(self._membership.world)

    def over(self, ranks: tuple[int, ...]) -> Group | None:
        """The group over an owner set; None for a single rank."""
        return self._handles[ranks] if len(ranks) > 1 else None

    @property
    def links(self) -> Link | None:
        """What the rank exchanges through with its stage's mates and with neighbouring stages; None where it has neither."""
        return self._links

    @property
    def is_open(self) -> bool:
        """Whether the groups can still be used."""
        return self._open

    def fits(self, layout: Layout) -> bool:
        """Whether the layout needs the very same groups, as after a change of the micro-batch split."""
        return Membership.of(self._model, layout) == self._membership

    def complete(self) -> None:
        """Return once nothing that this rank has started is under way any more."""
        if self._links is not None:
            self._links.complete()

    def close(self) -> None:
        """Abort and drop every group at once."""
        self._open = False
        for group in self._handles.values():
            group.close()
        self._handles.clear()
        if self._links is not None:
            self._links.close()

    def _ends(self) -> bool:
        """Asked while a call of a group waits: whether it is interrupted. Then the generation is over, for every group of it."""
        if not self._interrupted():
            return False
        self.close()
        return True
