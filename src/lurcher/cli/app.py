"""The command `lurcher`: its sub-commands by name, and errors as one line with an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

import click

from lurcher import __version__
from lurcher.cli import short_lived
from lurcher.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USER_ERROR, LurcherError

COMMANDS: Mapping[str, str] = {
    "demo": "lurcher.cli.demo:demo",
    "train": "lurcher.cli.train:train",
    "analyze": "lurcher.cli.analyze:analyze",
    "plan": "lurcher.cli.plan:plan",
    "report": "lurcher.cli.report:report",
    "inject": "lurcher.cli.inject:inject",
}
"""Name of a command -> where it lives. The order is that of the help."""
SHORT_LIVED = frozenset({"analyze", "plan", "report"})
"""Commands that read, compute and end; the others start a job's processes, which get the environment."""


class LazyGroup(click.Group):
    """A group that imports a command's file only when that command, or the help, is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="lurcher", message="%(prog)s %(version)s")
def app() -> None:
    """Find the slow GPU or link in a training job, prove it, and keep training around it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. An expected error becomes one line on stderr.

    Without `argv` it is the process's own command line, and the process is set up for it.
    """
    if argv is not None:
        return _run(list(argv))
    words = sys.argv[1:]
    if not SHORT_LIVED.intersection(words[:1]):
        return _run(words)
    short_lived.begin()
    code = _run(words)
    short_lived.end()
    return code


def _run(words: list[str]) -> int:
    try:
        code = app.main(args=words or ["--help"], prog_name="lurcher", standalone_mode=False, obj=tuple(words))
    except click.ClickException as error:
        _complain(_usage_line(error))
        return EXIT_USER_ERROR
    except LurcherError as error:
        _complain(str(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else EXIT_DONE


def _usage_line(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    line = " ".join(error.format_message().split()).rstrip(".")
    return f"{line}; see `{context.command_path} --help`" if context is not None else line


def _complain(line: str) -> None:
    click.echo("lurcher: " + " ".join(line.split()), err=True)
