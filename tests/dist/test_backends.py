"""The training does not know what carries its bytes: sockets, gloo's groups, or groups with NCCL's manners."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from comparison import owners_of_slices, worst_error
from reference import Trained, train
from spawned import Job, RankResult, run_jobs
from test_exact import TP2, built, make_config, uniform
from tests.fakenccl.backend import fake_backend

from lurcher.config import config_from_dict
from lurcher.errors import UserError
from lurcher.runtime.backends import GroupBackend, LocalBackend, MakeGloo, backend_named, check_nccl

pytestmark = [pytest.mark.dist]
ITERATIONS = 5
FORMS = [
    Job("tp2pp2-tied-then-shares", make_config(tied=True), uniform(2, 2, 1), ITERATIONS, layouts=((3, built((8,), [(1, TP2), (3, (3, 1))])),)),
    Job(
        "tp-differs-then-layers-move",
        make_config(),
        built((5, 3), [(1, (1,)), (3, TP2)], [(4, TP2)]),
        ITERATIONS,
        layouts=((3, built((3, 5), [(2, TP2), (2, (1,))], [(4, (2, 1))])),),
    ),
]
BACKENDS = {"local": LocalBackend(), "gloo": GroupBackend(MakeGloo()), "fakenccl": fake_backend()}
JOBS = [job._replace(name=f"{job.name} {name}", backend=backend) for job in FORMS for name, backend in BACKENDS.items()]
every_backend = pytest.mark.parametrize("backend", list(BACKENDS))
every_job = pytest.mark.parametrize("name", [job.name for job in FORMS])


@pytest.fixture(scope="module")
def results() -> dict[str, dict[int, RankResult]]:
    """All jobs, run by one set of processes."""
    return run_jobs(JOBS)


@pytest.fixture(scope="module")
def references() -> dict[str, Trained]:
    torch.set_num_threads(1)
    return {job.name: train(job.config, job.iterations) for job in FORMS}


@every_job
@every_backend
def test_state_and_losses_equal_the_single_process(name, backend, results, references):
    ranks = results[f"{name} {backend}"]
    errors = worst_error({rank: result for rank, result in ranks.items() if result.state}, references[name])
    assert max(errors.values()) <= 1e-9, errors
    for result in ranks.values():
        np.testing.assert_allclose(result.losses, references[name].losses, rtol=1e-9)
        np.testing.assert_allclose(result.norms, references[name].norms, rtol=1e-9)
    assert owners_of_slices(ranks)


@every_job
def test_the_bits_are_the_same_on_every_backend(name, results):
    """Sums of a stage are made in one order, and those over owners by gloo, on all of them."""
    first = results[f"{name} local"]
    for other in ("gloo", "fakenccl"):
        for rank, result in results[f"{name} {other}"].items():
            assert result.losses == first[rank].losses
            assert result.digests == first[rank].digests
            assert result.received_bytes == first[rank].received_bytes


def test_a_job_file_names_its_backend():
    assert isinstance(backend_named(config_from_dict({}).run.backend, 0), LocalBackend)
    named = backend_named(config_from_dict({"run": {"backend": "gloo"}}).run.backend, 0)
    assert isinstance(named, GroupBackend) and not isinstance(named, LocalBackend)
    with pytest.raises(UserError, match='run.backend is "mpi"; expected one of "local", "gloo", "nccl"'):
        config_from_dict({"run": {"backend": "mpi"}})


def test_a_pytorch_without_nccl_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(UserError, match='run.backend is "nccl".*built without NCCL.*set run.backend to "local" or "gloo"'):
        check_nccl(1)


def test_with_nccl_but_too_few_gpus_both_numbers_are_told(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    check_nccl(4)
    with pytest.raises(UserError, match="for 8 ranks, and PyTorch sees 4 GPUs"):
        check_nccl(8)
