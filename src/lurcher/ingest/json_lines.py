"""JSON lines: one record a line, with an iteration and its time among the keys, as metric loggers write them (Lingua, torchtitan, Levanter)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lurcher.errors import UserError
from lurcher.ingest.json_records import Records
from lurcher.ingest.lines import blocks
from lurcher.ingest.log import Log, Progress


def read_json_lines(path: Path, progress: Progress | None = None) -> Log:
    """The Log of a file of JSON lines; lines without an iteration and a duration are counted and left out.

    Raises UserError for a line that is no JSON object (a last line that is cut off is left out), and where no line carries an iteration.
    """
    records = Records(str(path), "line")
    decoder = msgspec.json.Decoder(dict[str, Any])
    for block in blocks(path, progress):
        for number, raw in enumerate(block.lines, block.first_line):
            if not raw.strip():
                continue
            try:
                record = decoder.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if block.ended:
                    text = f"{path} line {number} is no JSON object ({error}); correct or remove the line, or give each format a file of its own"
                    raise UserError(text) from error
                records.notes.append(f"line {number}, the last one, is cut off: left out")
                continue
            records.take(number, record)
    log = records.log("jsonl")
    if log is None:
        raise UserError(
            f"{path}: none of {records.num_other} JSON records has both an iteration and its duration; name the keys iteration and duration_s"
        )
    return log
