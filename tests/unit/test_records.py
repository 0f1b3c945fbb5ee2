"""Records: the layout of the arrays on disk, and values that survive JSON."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from lurcher import records
from lurcher.layout import Layout
from lurcher.records import (
    CHUNK,
    EVENT,
    GROUP_KINDS,
    ITERATION,
    WORKLOAD,
    Action,
    BenchResult,
    ChangePoint,
    Component,
    Decision,
    Finding,
    Op,
    Place,
    Plan,
    Reconfiguration,
    Suspicion,
)

LAYOUT = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=32)
PLAN = Plan(LAYOUT.with_split((20, 12)), (Action("split", "20/12"),), 1.5, 1.2, 1.0, 0.25, 0, "rank 5 is slow")
RANK = Component.of_rank(5)
VALUES = [
    Place(5, "node-a", 1, "cuda:1", "0000:3b:00.0", "mlx5_0"),
    Place(0, "node-a"),
    RANK,
    ChangePoint(25, 31, 1.0, 1.6, 1.6, "slower", "confirmed", "default", 40.0),
    Suspicion(RANK, "compute", 1.8, 0.9, ("busy x1.80",)),
    BenchResult(RANK, "gemm", 0.018, 5),
    Finding(RANK, "compute", 1.8, 0.018, 0.010, "s", 5, "emulated", True, "x1.80 of its own baseline"),
    PLAN.actions[0],
    PLAN,
    Reconfiguration(PLAN, 1, 34, 0.25, 0, "applied", "pays off"),
    Decision(31, 12.5, "change_point", "six of seven", {"slowdown": 1.6}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_survives_json_and_is_frozen(value: msgspec.Struct) -> None:
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], None)


def test_every_struct_is_tried_above() -> None:
    kinds = {
        kind for kind in vars(records).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == records.__name__
    }
    assert kinds == {type(value) for value in VALUES}


@pytest.mark.parametrize(("dtype", "itemsize"), [(EVENT, 54), (WORKLOAD, 24), (ITERATION, 116), (CHUNK, 41)])
def test_arrays_are_packed_little_endian_and_plain(dtype: np.dtype[np.void], itemsize: int) -> None:
    """Rows are written to files and sent between ranks as bytes: no padding, no objects, one byte order."""
    assert dtype.itemsize == itemsize
    assert dtype.fields is not None
    for field, (kind, *_) in dtype.fields.items():
        assert kind.kind in "iuf", field
        assert kind == kind.newbyteorder("<"), field
    rows = np.zeros(3, dtype)
    assert np.array_equal(np.frombuffer(rows.tobytes(), dtype), rows)


def test_units_stand_in_the_names() -> None:
    for dtype in (EVENT, ITERATION, CHUNK):
        for field, (kind, *_) in (dtype.fields or {}).items():
            if kind.kind == "f":
                assert field.endswith("_s"), field
            if field.endswith("_ns"):
                assert kind == np.dtype("<i8"), field
    assert {f"transfer_{kind}_s" for kind in GROUP_KINDS} <= set(ITERATION.names or ())


def test_operations_fit_their_column_and_work_lies_above_communication() -> None:
    assert len({op.value for op in Op}) == len(Op)
    assert max(Op) < 256
    work = {Op.FORWARD, Op.BACKWARD, Op.WEIGHT, Op.INPUT, Op.OPTIMIZER, Op.PAUSE}
    assert {op for op in Op if op >= Op.FORWARD} == work


def test_gain_and_gap_of_a_plan() -> None:
    assert PLAN.gain == pytest.approx(1.25)
    assert PLAN.gap == pytest.approx(0.2)
    broken = msgspec.structs.replace(PLAN, predicted_s=0.0, bound_s=0.0)
    assert (broken.gain, broken.gap) == (1.0, 0.0)


def test_a_plan_with_a_layout_that_cannot_be_is_not_read() -> None:
    table = msgspec.to_builtins(PLAN)
    table["layout"]["num_microbatches"] = 31
    with pytest.raises(Exception, match="sum to 32, but the job runs 31"):
        msgspec.convert(table, Plan)
