"""The documents: links lead somewhere, commands and job files in them are understood, generated pages are up to date."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import click
import msgspec
import pytest

from lurcher import __version__
from lurcher.cli.app import COMMANDS, app
from lurcher.config import JobConfig, config_from_toml_text, load_config
from lurcher.plan.problem import problem_from_toml

REPO = Path(__file__).parents[2]
PAGES = sorted([*REPO.glob("*.md"), *REPO.glob("docs/**/*.md"), *REPO.glob("examples/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ASIDE = {"docs/images/report.png": "made from a demo run"}
"""Links to what is not made by the tests."""


def ids(page: Path) -> str:
    return str(page.relative_to(REPO))


def fences(language: str) -> list[tuple[str, str]]:
    return [(ids(page), text) for page in PAGES for kind, text in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def shell_lines() -> list[tuple[str, list[str]]]:
    lines = [(page, shlex.split(line, comments=True)) for page, text in fences("sh") for line in text.splitlines()]
    return [(page, words) for page, words in lines if words]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", REPO / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_to_files(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        path = (page.parent / target).resolve()
        if not target.startswith("https://") and not path.exists() and str(path.relative_to(REPO)) not in ASIDE:
            broken.append(target)
    assert broken == []


def test_commands_in_the_documents_are_understood() -> None:
    """Parsed as the command line would be: a misspelt command, option or choice fails. That the demo runs is shown in tests/dist."""
    lines = [(page, words) for page, words in shell_lines() if words[0].endswith("lurcher")]
    assert {words[1] for _, words in lines} == set(COMMANDS)
    root = click.Context(app, info_name="lurcher", **app.context_settings)
    for page, words in lines:
        arguments = words[1 : words.index(">")] if ">" in words else words[1:]
        command = app.get_command(root, arguments[0])
        assert command is not None, f"{page}: {' '.join(words)}"
        try:
            context = command.make_context(arguments[0], arguments[1:], parent=root)
        except click.UsageError as error:
            pytest.fail(f"{page}: {' '.join(words)}: {error.format_message()}")
        for fault in context.params.get("faults", ()):
            config_from_toml_text(f"[[fault]]\ntext = '{fault}'\n[job]\niterations = 200\n")


def test_make_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {words[1] for _, words in shell_lines() if words[0] == "make"}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize(("page", "text"), fences("toml"), ids=[page for page, _ in fences("toml")])
def test_files_in_the_documents_are_valid(page: str, text: str) -> None:
    """Job files, and, by their rates, planning problems."""
    if "[rates]" in text:
        assert problem_from_toml(text, source=page).causes
    else:
        assert config_from_toml_text(text, source=page) != JobConfig()


def test_every_example_is_valid_and_has_its_expected_verdict() -> None:
    examples = [path for path in sorted((REPO / "examples").glob("*.toml")) if not path.name.endswith(".expected.toml")]
    assert len(examples) >= 3
    for path in examples:
        config = load_config(path)
        expected = tomllib.loads(path.with_suffix(".expected.toml").read_text(encoding="utf-8"))
        assert sorted(expected["ranks"]) == sorted({rank for fault in config.fault for rank in fault.where.ranks})
        assert expected["verdict"] == ("fail_slow" if config.fault else "healthy")
        assert f"({path.name})" in (REPO / "examples" / "README.md").read_text(encoding="utf-8")


def test_generated_pages_are_up_to_date() -> None:
    """If this fails: `make docs`. So an option or key cannot change unseen."""
    module = generator()
    for name, page in module.PAGES.items():
        assert (REPO / "docs" / name).read_text(encoding="utf-8") == page(), name


def test_every_key_of_the_job_file_is_explained() -> None:
    module = generator()
    page = (REPO / "docs" / "reference" / "job-file.md").read_text(encoding="utf-8")
    for section in msgspec.structs.fields(JobConfig):
        assert f"[{section.name}]" in page
        if section.name != "fault":
            keys = {field.name for field in msgspec.structs.fields(type(section.default))}
            assert keys == set(module.field_docs(type(section.default))), section.name
            assert all(f"| `{key}` |" in page for key in keys)


def test_the_tree_in_the_readme_is_the_tree() -> None:
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    tree = next(text for kind, text in FENCE.findall(readme) if not kind)
    source = REPO / "src" / "lurcher"
    folders = {path.parent.name for path in source.glob("*/__init__.py")}
    assert set(re.findall(r"^  (\w+)/ ", tree, re.MULTILINE)) == folders
    files = {path.name for path in source.glob("*.py") if not path.name.startswith("__")}
    assert set(re.findall(r"\w+\.py", tree)) == files


def test_the_changelog_tells_of_this_version() -> None:
    assert f"## {__version__}" in (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
