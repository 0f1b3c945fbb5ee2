"""Iteration times out of other tools' files: one reader a format, recognised by content. `read_log` and `read_logs` are the way in."""

from lurcher.ingest.log import Log
from lurcher.ingest.read import FORMATS, read_log, read_logs

__all__ = ["FORMATS", "Log", "read_log", "read_logs"]
