"""Operation traces as Parquet, with the job's sizes in a YAML file beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lurcher.errors import UserError
from lurcher.ingest.op_trace import COLUMNS, Column, OpTrace, checked, distinct, op_codes

ENOUGH_COLUMNS = 6
"""A Parquet file with so many of the columns is a trace, even if it lacks one that it needs: then the message can name it."""
META_BYTES = 1 << 16


def is_parquet_trace(path: Path) -> bool:
    """Whether a Parquet file holds operations and not iterations; False for what cannot be read at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return len(set(COLUMNS) & set(file.schema_arrow.names)) >= ENOUGH_COLUMNS
    except (pa.ArrowException, OSError):
        return False


def read_parquet_trace(path: Path) -> OpTrace:
    """The trace of a Parquet file; raises UserError, in one line, for missing columns or what cannot be a trace."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise UserError(
                    f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; an operation trace has {', '.join(COLUMNS)}"
                )
            table = file.read(columns=list(COLUMNS))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a readable parquet file ({reason}); it may be cut off: give a whole one") from error
    numbers = {name: _numbers(path, name, table.column(name)) for name in COLUMNS if name != "optype"}
    kinds = table.column("optype").combine_chunks()
    if not pa.types.is_dictionary(kinds.type):
        kinds = kinds.cast(pa.string()).dictionary_encode()
    if kinds.null_count:
        raise UserError(f"{path}: column optype has {kinds.null_count} empty rows; each row names its operation")
    op = op_codes(str(path), np.array(kinds.dictionary.to_pylist(), object), kinds.indices.to_numpy())
    meta = _meta(path)
    trace = checked(_trace(str(path), op, numbers, meta))
    _check_sizes(trace, meta)
    return trace


def _trace(path: str, op: Column, numbers: dict[str, Column], meta: dict[str, int]) -> OpTrace:
    return OpTrace(
        path=path,
        format="op trace",
        dp=numbers["dp_rank"],
        stage=numbers["stage"],
        rank=numbers["rank"],
        step=numbers["step"],
        op=op,
        start_s=numbers["start_ts"],
        duration_s=numbers["duration"],
        seq=numbers["seq_id"],
        chunk=numbers["mc"],
        microbatch=numbers["mb_id"],
        model_chunk=numbers["gmc"],
        ranks_per_worker=meta.get("tp_size", 1) * meta.get("dsp_size", 1),
        notes=() if meta else ("no file with the job's sizes beside it: a worker is counted as one GPU",),
    )


def _numbers(path: Path, name: str, column: Any) -> Column:
    import pyarrow as pa

    is_time = name in ("start_ts", "duration")
    if column.null_count:
        raise UserError(f"{path}: column {name} has {column.null_count} empty rows; each row needs a number there")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise UserError(f"{path}: column {name} holds {column.type}; give numbers")
    values: Column = column.to_numpy()
    if is_time:
        return values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)
    if values.dtype.kind == "f":
        if not (np.isfinite(values).all() and (values == np.floor(values)).all()):
            raise UserError(f"{path}: column {name} has values that are no whole numbers; give whole numbers")
        values = values.astype(np.int64)
    return values


def _meta(path: Path) -> dict[str, int]:
    """Whole numbers of `meta-NAME.yaml` beside `trace-NAME.parquet` (or of `FILE.yaml`); empty without one. Plain `key: value` lines are all it has."""
    names = [path.with_suffix(".yaml"), path.with_name(path.stem.replace("trace-", "meta-", 1) + ".yaml")]
    for file in names:
        if file.is_file() and file.stat().st_size <= META_BYTES:
            pairs = (line.partition(":") for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
            return {key.strip(): int(value) for key, _, value in pairs if value.strip().isdecimal()}
    return {}


def _check_sizes(trace: OpTrace, meta: dict[str, int]) -> None:
    for key, values, what in (("dp_size", trace.dp, "replicas"), ("pp_size", trace.stage, "stages")):
        found = len(distinct(values))
        if key in meta and meta[key] != found:
            raise UserError(f"{trace.path} has {found} {what}, the file with its sizes says {key} {meta[key]}; give the rows of all")
