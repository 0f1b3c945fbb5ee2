"""Micro-batches: exact packing, targets inside documents, and keys that know nothing of ranks."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.errors import UserError
from lurcher.records import WORKLOAD
from lurcher.runtime.corpus import load_corpus
from lurcher.runtime.data import Loader
from lurcher.runtime.shapes import END_MARK

SEQ_LEN = 64


@pytest.fixture(scope="module")
def loader() -> Loader:
    return Loader("stdlib", 0, SEQ_LEN, 8, bucketed=False)


@pytest.fixture(scope="module")
def bucketed() -> Loader:
    return Loader("stdlib", 0, SEQ_LEN, 32, bucketed=True)


@settings(max_examples=60, deadline=None)
@given(iteration=st.integers(0, 10_000), microbatch=st.integers(0, 7))
def test_a_microbatch_is_whole_documents_and_only_the_last_is_cut(loader, iteration, microbatch):
    batch = loader.microbatch(iteration, microbatch)
    corpus = loader.corpus
    by_content = {corpus.text[s : s + n].tobytes() for s, n in zip(corpus.starts, corpus.lengths, strict=True)}
    assert all(len(part) == SEQ_LEN for part in batch[:4])
    last = int(batch.documents[-1])
    lengths = []
    for document in range(last + 1):
        where = batch.documents == document
        text = batch.tokens[where].astype(np.uint8).tobytes()
        lengths.append(len(text))
        assert batch.positions[where].tolist() == list(range(len(text)))
        assert batch.targets[where][:-1].tolist() == list(text[1:])
        is_whole = batch.targets[where][-1] == END_MARK
        if is_whole:
            assert text in by_content
        else:
            assert document == last
            following = text + bytes([batch.targets[where][-1]])
            assert any(content.startswith(following) for content in by_content)
    assert batch.tokens.max() < 256
    assert (batch.num_tokens, batch.sum_len_sq) == (SEQ_LEN, sum(n * n for n in lengths))


@pytest.mark.parametrize("name", ["loader", "bucketed"])
def test_workload_says_what_the_microbatches_are(name, request):
    loader = request.getfixturevalue(name)
    for iteration in (0, 3, 11):
        rows = loader.workload(iteration)
        assert rows.dtype == WORKLOAD
        assert rows["microbatch"].tolist() == list(range(len(rows)))
        assert set(rows["iteration"]) == {iteration}
        batches = [loader.microbatch(iteration, m) for m in range(len(rows))]
        assert rows["num_tokens"].tolist() == [b.num_tokens for b in batches]
        assert rows["sum_len_sq"].tolist() == [b.sum_len_sq for b in batches]


def test_the_key_is_seed_iteration_and_microbatch_whatever_was_asked_before(loader):
    other = Loader("stdlib", 0, SEQ_LEN, 8, bucketed=False)
    other.microbatch(9, 7)
    other.workload(2)
    for iteration, microbatch in ((5, 1), (0, 0), (5, 2)):
        first, second = loader.microbatch(iteration, microbatch), other.microbatch(iteration, microbatch)
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(loader.microbatch(5, 1).tokens, loader.microbatch(5, 2).tokens)
    assert not np.array_equal(loader.microbatch(5, 1).tokens, loader.microbatch(6, 1).tokens)
    reseeded = Loader("stdlib", 1, SEQ_LEN, 8, bucketed=False)
    assert not np.array_equal(loader.microbatch(5, 1).tokens, reseeded.microbatch(5, 1).tokens)


def test_documents_differ_truly_in_length(loader):
    lengths = loader.corpus.lengths
    low, high = np.percentile(lengths, [10, 90])
    assert high > 10 * low


def test_bucketed_iterations_differ_in_work_and_plain_ones_hardly(loader, bucketed):
    plain = [int(loader.workload(i)["sum_len_sq"].sum()) for i in range(60)]
    varied = [int(bucketed.workload(i)["sum_len_sq"].sum()) for i in range(60)]
    assert np.std(varied) / np.mean(varied) > 3 * np.std(plain) / np.mean(plain)
    assert max(varied) > 4 * min(varied)
    assert max(varied) == 32 * SEQ_LEN**2


def test_bucketed_documents_of_an_iteration_are_of_like_length(bucketed):
    for iteration in range(20):
        whole = []
        for m in range(8):
            batch = bucketed.microbatch(iteration, m)
            whole += np.bincount(batch.documents[batch.documents < batch.documents[-1]]).tolist()
        if whole:
            assert max(whole) <= 1.4 * min(whole)


def test_loading_takes_under_a_second_and_an_iteration_under_5_ms():
    load_corpus("stdlib")  # the first read may find cold files
    start = time.process_time()
    loader = Loader("stdlib", 0, SEQ_LEN, 32, bucketed=False)
    loaded = time.process_time()
    for iteration in range(20):
        loader.workload(iteration)
    assert loaded - start < 1.0
    assert (time.process_time() - loaded) / 20 < 0.005


def test_a_folder_and_a_file_can_be_read(tmp_path):
    (tmp_path / "b.txt").write_text("second paragraph\n\nthird one here")
    (tmp_path / "a.txt").write_text("first paragraph\nof two lines")
    (tmp_path / "c.bin").write_bytes(b"\0\1\2 no text")
    sub = tmp_path / "sub"
    sub.mkdir()
    (sub / "d.txt").write_text("fourth")
    corpus = load_corpus(str(tmp_path))
    texts = [corpus.text[s : s + n].tobytes().decode() for s, n in zip(corpus.starts, corpus.lengths, strict=True)]
    assert texts == ["first paragraph\nof two lines", "second paragraph", "third one here", "fourth"]
    one = Loader(str(tmp_path / "a.txt"), 0, 16, 2, bucketed=True).microbatch(0, 0)
    assert bytes(one.tokens.astype(np.uint8)) == b"first paragraph\n"
    assert one.targets[-1] == ord("o")


@pytest.mark.parametrize(("name", "words"), [("missing", ["does not exist", "stdlib"]), ("empty", ["holds no text", "stdlib"])])
def test_a_missing_or_empty_corpus_is_refused(tmp_path, name, words):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as caught:
        load_corpus(str(tmp_path / name))
    assert all(word in str(caught.value) for word in [*words, str(tmp_path / name)])


def test_a_negative_seed_is_refused():
    with pytest.raises(UserError, match=r"job\.seed is -1"):
        Loader("stdlib", -1, SEQ_LEN, 8, bucketed=False)
