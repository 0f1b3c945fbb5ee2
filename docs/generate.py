"""Write the reference pages that come from the code itself; a test compares them with what is committed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import click
import msgspec

from lurcher import config
from lurcher.cli.app import app
from lurcher.model.rates import Rates
from lurcher.plan import problem
from lurcher.plan.moves import SwitchCosts

FOLDER = Path(__file__).parent
NOTE = "<!-- Written by `make docs` from the code; edit that, not this page. -->\n"


def job_file_page() -> str:
    """Every section and key of the job file, with default, what is allowed, and what it means."""
    lines = ["# The job file", "", NOTE, _section_doc(config.JobConfig), ""]
    lines += ["All sections and keys may be left out. An unknown one is refused. `lurcher train JOB.toml` reads the file.", ""]
    defaults = config.JobConfig()
    for section in msgspec.structs.fields(config.JobConfig):
        value = getattr(defaults, section.name)
        if not isinstance(value, msgspec.Struct):
            continue
        meanings = field_docs(type(value))
        lines += [f"## `[{section.name}]`", "", _section_doc(type(value)), "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
        for field in msgspec.structs.fields(type(value)):
            default = msgspec.json.encode(field.default).decode()
            lines.append(f"| `{field.name}` | `{default}` | {config.allowed(section.name, field.name)} | {meanings.get(field.name, '')} |")
        lines.append("")
    lines += ["## `[[fault]]`", "", _said(field_docs(config.JobConfig)["fault"]), "", *FAULT_TABLE, ""]
    return "\n".join(lines)


FAULT_TABLE = (
    "| key | in the text form | meaning |",
    "|---|---|---|",
    "| `kind` | first word | `slow`, `link`, `ramp` (grows to the factor), `flap` (on and off), `stop`, `hang` |",
    "| `rank` or `link` | `rank 5`, `rank 5,6`, `link 0-4` | what is hit |",
    "| `factor` | `x1.8` | how many times longer it takes; not for stop and hang |",
    "| `from` | `from 20`, `from 12s` | first iteration that is hit, or seconds since the first iteration began |",
    "| `to` or `for` | `to 60`, `for 40`, `for 30s` | the end, or the length; left out: for ever. `to 60` is half-open: 59 is the last one hit |",
    "| `every` | `every 10` | period of a flap: on in its first half, off in its second |",
    "| `phase` | `in backward` | one part of an iteration: `forward`, `backward`, `sync`, `commit`, `reconfigure` |",
)


def commands_page() -> str:
    """The help of every command."""
    lines = ["# Commands", "", NOTE]
    root = click.Context(app, info_name="lurcher", terminal_width=100, **app.context_settings)
    for name in ("", *app.list_commands(root)):
        command = app.get_command(root, name) if name else app
        assert command is not None
        context = root if not name else click.Context(command, info_name=name, parent=root, terminal_width=100, max_content_width=100)
        lines += [f"## `{context.command_path}`", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)


def problem_file_page() -> str:
    """Every section and key of a planning problem."""
    lines = [
        "# The problem file",
        "",
        NOTE,
        "What `lurcher plan PROBLEM.toml` reads. An unknown key is refused; see [the guide](../guides/plan.md).",
        "",
    ]
    sections = {
        "[layout]": problem.LayoutTable,
        "[[replica]]": problem.ReplicaTable,
        "[rates]": Rates,
        "[[fault]]": problem.FaultTable,
        "[switch]": SwitchCosts,
    }
    for name, struct in sections.items():
        meanings = field_docs(struct)
        lines += [f"## `{name}`", "", _section_doc(struct), "", "| key | default | meaning |", "|---|---|---|"]
        for field in msgspec.structs.fields(struct):
            if struct is Rates and field.name in problem.GIVEN_BY_FAULTS:
                continue
            default = "needed" if field.required else f"`{msgspec.json.encode(field.default).decode()}`"
            lines.append(f"| `{field.name}` | {default} | {meanings.get(field.name, '')} |")
        lines.append("")
    return "\n".join(lines)


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The text under each field of a struct, which Python itself does not keep."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(struct)).body if isinstance(node, ast.ClassDef))
    found = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def _section_doc(struct: type[msgspec.Struct]) -> str:
    return _said(" ".join((inspect.getdoc(struct) or "").split()))


def _said(text: str) -> str:
    text = text.split(": ", 1)[-1] if text.startswith("`[") else text
    return text[:1].upper() + text[1:]


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/job-file.md": job_file_page,
    "reference/commands.md": commands_page,
    "reference/problem-file.md": problem_file_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
