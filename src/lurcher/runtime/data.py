"""Micro-batches: packed documents, keyed by (seed, iteration, global micro-batch) and by nothing else. numpy only.

A micro-batch is one sequence of exactly `seq_len` tokens. Its length never changes with the layout, and no rank appears in
its key: that is what keeps the training the same under every layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError
from lurcher.records import WORKLOAD
from lurcher.runtime.corpus import MIN_DOCUMENT_BYTES, Corpus, load_corpus
from lurcher.runtime.shapes import END_MARK

IntArray = npt.NDArray[np.int64]

BUCKET_WIDTH = 1.15
"""Documents of a bucketed iteration are this factor shorter or longer than the drawn length, at most."""
MIN_BUCKET_DOCUMENTS = 16
"""Where fewer documents are that near, the nearest so many are taken."""
SHORTEST_BUCKET, LONGEST_BUCKET = 1 / 8, 2.0
"""Range of the drawn length, in sequences; above 1 the sequence is one document."""


class MicroBatch(NamedTuple):
    """One packed sequence; the arrays have `seq_len` entries.

    The target is the next byte of the same document, the end mark after its last byte. `positions` restart with every document,
    `documents` numbers them from 0.
    """

    tokens: IntArray
    targets: IntArray
    positions: IntArray
    documents: IntArray
    num_tokens: int
    sum_len_sq: int


class _Packing(NamedTuple):
    """Which documents make up every micro-batch of an iteration: [num_microbatches, slots] each."""

    iteration: int
    picked: IntArray
    used: IntArray  # tokens taken from the document; 0 for slots behind the end


class Loader:
    """Micro-batches of a job. Two loaders of equal arguments give equal micro-batches."""

    def __init__(self, source: str, seed: int, seq_len: int, num_microbatches: int, *, bucketed: bool) -> None:
        if seed < 0:
            raise UserError(f"job.seed is {seed}; it must be 0 or more")
        self._corpus = load_corpus(source)
        self._seed = seed
        self._seq_len = seq_len
        self._num_microbatches = num_microbatches
        self._bucketed = bucketed
        self._by_length = np.argsort(self._corpus.lengths, kind="stable")
        self._sorted_lengths = self._corpus.lengths[self._by_length]
        self._packing = self._pack(0)

    @property
    def corpus(self) -> Corpus:
        """The documents."""
        return self._corpus

    def workload(self, iteration: int) -> npt.NDArray[np.void]:
        """WORKLOAD rows of ALL global micro-batches of the iteration, without touching a token."""
        packing = self._packed(iteration)
        rows = np.zeros(self._num_microbatches, dtype=WORKLOAD)
        rows["iteration"] = iteration
        rows["microbatch"] = np.arange(self._num_microbatches)
        rows["num_tokens"] = self._seq_len
        rows["sum_len_sq"] = np.square(packing.used).sum(axis=1)
        return rows

    def microbatch(self, iteration: int, microbatch: int) -> MicroBatch:
        """The packed sequence of one global micro-batch."""
        return self.microbatches(iteration, [microbatch])[0]

    def microbatches(self, iteration: int, indices: Sequence[int]) -> list[MicroBatch]:
        """The packed sequences of some global micro-batches, which cost little more together than one alone."""
        packing = self._packed(iteration)
        used = packing.used[indices]
        picked = packing.picked[indices]
        num, slots = used.shape
        documents = np.repeat(np.tile(np.arange(slots), num), used.ravel()).reshape(num, self._seq_len)
        before = np.cumsum(used, axis=1) - used
        positions = np.arange(self._seq_len) - np.take_along_axis(before, documents, axis=1)
        documents_of = np.take_along_axis(picked, documents, axis=1)
        source = self._corpus.starts[documents_of] + positions
        tokens = self._corpus.text[source].astype(np.int64)
        is_last = positions + 1 == self._corpus.lengths[documents_of]
        following = self._corpus.text[np.minimum(source + 1, len(self._corpus.text) - 1)].astype(np.int64)
        targets = np.where(is_last, END_MARK, following)
        squares = np.square(used).sum(axis=1).tolist()
        return [
            MicroBatch(*arrays, self._seq_len, sum_len_sq) for *arrays, sum_len_sq in zip(tokens, targets, positions, documents, squares, strict=True)
        ]

    def _packed(self, iteration: int) -> _Packing:
        # One iteration's packing serves all its micro-batches: kept for speed, never for meaning.
        if self._packing.iteration != iteration:
            self._packing = self._pack(iteration)
        return self._packing

    def _pack(self, iteration: int) -> _Packing:
        generator = np.random.default_rng([self._seed, iteration])
        first, end = self._bucket(generator) if self._bucketed else (0, len(self._by_length))
        slots = -(-self._seq_len // MIN_DOCUMENT_BYTES)
        picked = self._by_length[generator.integers(first, end, size=(self._num_microbatches, slots))]
        lengths = self._corpus.lengths[picked]
        before = np.cumsum(lengths, axis=1) - lengths
        return _Packing(iteration, picked, np.clip(self._seq_len - before, 0, lengths))

    def _bucket(self, generator: np.random.Generator) -> tuple[int, int]:
        """Range in the order by length of the documents near one length, drawn log-uniformly."""
        low, high = np.log(SHORTEST_BUCKET), np.log(LONGEST_BUCKET)
        length = self._seq_len * float(np.exp(generator.uniform(low, high)))
        first, end = np.searchsorted(self._sorted_lengths, [length / BUCKET_WIDTH, length * BUCKET_WIDTH])
        lacking = MIN_BUCKET_DOCUMENTS - int(end - first)
        if lacking > 0:
            first, end = first - (lacking + 1) // 2, end + (lacking + 1) // 2
        num_documents = len(self._sorted_lengths)
        first = min(max(0, int(first)), max(0, num_documents - MIN_BUCKET_DOCUMENTS))
        return first, min(num_documents, max(int(end), first + MIN_BUCKET_DOCUMENTS))
