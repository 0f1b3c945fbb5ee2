"""The way in: what a path holds is recognised by its content, never by its name, and read by the reader of that format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from lurcher.errors import UserError
from lurcher.ingest.csv_table import read_csv
from lurcher.ingest.deepspeed import deepspeed
from lurcher.ingest.json_lines import read_json_lines
from lurcher.ingest.json_series import NotJson, read_json
from lurcher.ingest.line_format import LineFormat
from lurcher.ingest.lines import BOM
from lurcher.ingest.lingua import lingua
from lurcher.ingest.log import Log, Progress
from lurcher.ingest.megatron import megatron
from lurcher.ingest.modded_nanogpt import modded_nanogpt
from lurcher.ingest.names import is_half_a_header, meaning_of
from lurcher.ingest.nanochat import nanochat
from lurcher.ingest.nanotron import nanotron
from lurcher.ingest.olmo import olmo
from lurcher.ingest.parquet import read_parquet
from lurcher.ingest.run_directory import read_run
from lurcher.ingest.table import Header, headers_of
from lurcher.ingest.text import read_text
from lurcher.ingest.torchtitan import torchtitan
from lurcher.ingest.worker_table import is_worker_table, read_workers

_TEXT: Final = (megatron, torchtitan, deepspeed, nanotron, nanochat, modded_nanogpt, olmo, lingua)
TEXT_FORMATS: Final = ("megatron", "torchtitan", "deepspeed", "nanotron", "nanochat", "modded-nanogpt", "olmo", "lingua")
FORMATS: Final = (*TEXT_FORMATS, "csv", "workers", "parquet", "json", "jsonl", "lurcher")
"""The formats by name, as `--format` takes them."""

HEAD_BYTES = 1 << 20
"""What is looked at to recognise a file."""

_MAGIC = {
    b"\x1f\x8b": "gzip data: decompress it first (gunzip)",
    b"\x28\xb5\x2f\xfd": "zstd data: decompress it first (unzstd)",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\xff\xfe": "UTF-16 text: convert it first (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "UTF-16 text: convert it first (iconv -f UTF-16 -t UTF-8)",
}
_TEXT_BYTES: Final = bytes({7, 8, 9, 10, 12, 13, 27, *range(32, 127), *range(128, 256)})
_MAX_STRANGE = 0.02
"""Share of control characters above which a file is binary."""
_JSON_ARRAY = re.compile(rb"\[\s*(?:\{|\[|\]|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\s*[,\]])")
_JSON_OBJECT = re.compile(rb"\{\s*(?:\"|\})")


def read_log(path: str | Path, format: str | None = None, progress: Progress | None = None) -> Log:  # noqa: A002 - the option's name
    """The one series of a file or run directory. `format`: one of FORMATS, where the content does not say it or holds several.

    Raises UserError, in one line with file, line and reason, where there is nothing to read, or more than one series.
    """
    logs = _read_path(Path(path), format, progress)
    if len(logs) > 1:
        raise UserError(f"{path} holds {len(logs)} series ({logs[0].path}, {logs[1].path}, ...); read_logs reads them all, one Log each")
    return logs[0]


def read_logs(paths: Iterable[str | Path], format: str | None = None, progress: Progress | None = None) -> tuple[Log, ...]:  # noqa: A002
    """Every series of all paths, in their order. A folder that is no run directory stands for all in it, at any depth, that can be read.

    What a folder holds and cannot be read is named in the notes of its first Log. `progress` counts the bytes of one file at a time.
    Raises UserError for a path that is no folder and cannot be read, and for a folder without anything readable.
    """
    found: list[Log] = []
    for path in map(Path, paths):
        found.extend(_read_folder(path, format, progress) if path.is_dir() and not _is_run(path) else _read_path(path, format, progress))
    return tuple(found)


def _read_folder(folder: Path, format_name: str | None, progress: Progress | None) -> list[Log]:
    found: list[Log] = []
    left_out: list[str] = []
    try:
        inside = _inside(folder)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}; give a folder that can be read") from error
    for path in inside:
        try:
            found.extend(_read_path(path, format_name, progress))
        except UserError as error:
            left_out.append(str(error))
    if not found:
        why = f"; of {len(left_out)} files the first: {left_out[0]}" if left_out else "; it is empty"
        raise UserError(f"{folder} holds nothing that can be read{why}; name a folder with training logs, tables or run directories")
    if left_out:
        found[0] = replace(found[0], notes=(*found[0].notes, *(f"left out of the folder: {text}" for text in left_out)))
    return found


def _inside(folder: Path) -> list[Path]:
    """Files and run directories in a folder, by name; hidden ones are passed over, and nothing is looked for inside a run directory."""
    inside: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink() and path.is_dir():
            continue
        if path.is_dir() and not _is_run(path):
            inside.extend(_inside(path))
        elif path.is_dir() or path.is_file():
            inside.append(path)
    return inside


def _is_run(path: Path) -> bool:
    return (path / "run.toml").is_file()


def _read_path(path: Path, format_name: str | None, progress: Progress | None) -> tuple[Log, ...]:
    if format_name is not None and format_name not in FORMATS:
        raise UserError(f"format {format_name!r} is not known; allowed: {', '.join(FORMATS)}")
    try:
        if path.is_dir():
            if format_name not in (None, "lurcher"):
                raise UserError(f"{path} is a folder, which is no {format_name}; name the file")
            return (read_run(path),)
        if not path.exists():
            raise UserError(f"{path} does not exist; give a training log, a table or a run directory")
        if not path.is_file():
            raise UserError(f"{path} is neither a file nor a folder; write the stream into a file first")
        return _read_file(path, format_name, progress)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; give a file that can be read") from error


def _read_file(path: Path, format_name: str | None, progress: Progress | None) -> tuple[Log, ...]:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    _refuse_binary(path, head)
    headers = () if head.startswith(b"PAR1") else headers_of(head)
    name = format_name or _recognise(head, headers)
    if name == "parquet":
        return (read_parquet(path, progress),)
    if name == "json":
        return _json_or_text(path, format_name, progress)
    if name == "jsonl":
        return (read_json_lines(path, progress),)
    if name == "workers":
        return (read_workers(path, _header(path, [h for h in headers if is_worker_table(h)] or headers), progress),)
    if name == "csv":
        return (read_csv(path, _header(path, [h for h in headers if meaning_of(h.names)] or headers), progress),)
    if name == "lurcher":
        raise UserError(f"{path} is a file, and a run is a folder; name the folder that holds run.toml")
    return (read_text(path, _text_forms(name), progress),)


def _json_or_text(path: Path, format_name: str | None, progress: Progress | None) -> tuple[Log, ...]:
    try:
        return read_json(path, progress)
    except NotJson:
        if format_name is not None:
            raise
        try:  # many logs begin with the configuration of the job, as JSON
            return (read_text(path, _text_forms("text"), progress),)
        except UserError:
            pass
        raise


def _text_forms(name: str) -> tuple[LineFormat, ...]:
    return tuple(form for form in (make() for make in _TEXT) if name in ("text", form.name))


def _header(path: Path, headers: Iterable[Header]) -> Header:
    for header in headers:
        return header
    raise UserError(f"{path} has no header with several columns; a table begins with a line such as iteration,duration_s")


def _recognise(head: bytes, headers: tuple[Header, ...]) -> str:
    """The format of a file by its beginning; "text" for any text that is no table and no JSON."""
    if head.startswith(b"PAR1"):
        return "parquet"
    start = head.removeprefix(BOM).lstrip()
    if _JSON_ARRAY.match(start):
        return "json"
    if _JSON_OBJECT.match(start):
        first, _, rest = start.partition(b"\n")
        return "jsonl" if first.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{") else "json"
    if any(meaning_of(header.names) for header in headers):
        return "csv"
    if any(is_worker_table(header) for header in headers):
        return "workers"
    return "csv" if any(is_half_a_header(header.names) for header in headers) else "text"


def _refuse_binary(path: Path, head: bytes) -> None:
    if not head.strip():
        raise UserError(f"{path} is empty; give a file with at least one iteration")
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            raise UserError(f"{path} is {what}")
    strange = head[:8192].translate(None, _TEXT_BYTES)  # some are in every log: colours, holes that a crash left
    if not head.startswith(b"PAR1") and len(strange) > _MAX_STRANGE * len(head[:8192]):
        first = head.index(strange[0])
        raise UserError(f"{path} is binary (byte {first} is 0x{strange[0]:02x}); give a text log, CSV, JSON or Parquet")
