"""How the benches print their rows."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

Row = dict[str, float | int | str]


def show(console: Console, title: str, rows: list[Row]) -> None:
    """Print rows as a table; its columns are the keys of all rows."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=title)
    for key in keys:
        table.add_column(key, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value := row.get(key, ""), float) else str(value) for key in keys))
    console.print(table)
