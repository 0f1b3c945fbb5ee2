"""The import rules that a layers contract cannot say: what decides sees neither the emulated device nor the injected faults."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest

SOURCE = Path(__file__).parents[2] / "src"

DECIDING = (
    "lurcher.analyze",
    "lurcher.control.coordinator",
    "lurcher.detect",
    "lurcher.localize",
    "lurcher.model.cost",
    "lurcher.model.critical_path",
    "lurcher.model.list_schedule",
    "lurcher.model.meeting",
    "lurcher.model.memory",
    "lurcher.model.order",
    "lurcher.model.price",
    "lurcher.model.rates",
    "lurcher.model.robust_fit",
    "lurcher.model.routes",
    "lurcher.model.schedule",
    "lurcher.model.stage_table",
    "lurcher.model.traffic",
    "lurcher.model.walks",
    "lurcher.plan",
    "lurcher.track",
    "lurcher.validate.judge",
)
TORCH_FREE = (*DECIDING, "lurcher.report", "lurcher.cli", "lurcher.runlog", "lurcher.config", "lurcher.control.protocols", "lurcher.probe.recorder")

CARRIES = {"lurcher.config", "lurcher.faults"}
"""Where faults and pace are defined and read from the job file. What decides may import config for its own sections."""
EMULATION = {"lurcher.model.pace", "lurcher.model.link_pace"}
HIDDEN_NAMES = {"JobConfig", "PaceSection", "Pace", "LinkPace", "Fault", "load_config", "config_from_dict", "config_from_toml_text"}
CONFIG_NAMES = {"config", "cfg", "job", "job_config"}
"""What a whole configuration would be called if one came in without a type."""
MAY_READ_ENVIRONMENT = {"lurcher.config", "lurcher.cli.short_lived", "lurcher.runtime.launch", "lurcher.runtime.worker"}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("lurcher", include_external_packages=True, cache_dir=None)


def modules(graph: grimp.ImportGraph, roots: tuple[str, ...]) -> set[str]:
    missing = [root for root in roots if root not in graph.modules]
    assert not missing, f"named in a rule, but gone: {missing}"
    return {module for root in roots for module in {root, *graph.find_descendants(root)}}


def reachable(graph: grimp.ImportGraph, roots: tuple[str, ...]) -> set[str]:
    """Every module of lurcher that running these could execute."""
    found = modules(graph, roots)
    for module in list(found):
        found |= {m for m in graph.find_upstream_modules(module) if m.startswith("lurcher")}
    return found


@cache
def tree_of(module: str) -> ast.Module:
    path = SOURCE / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def hidden_things_in(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name in HIDDEN_NAMES or f"{node.module}.{alias.name}" in CARRIES]
            found += [str(node.module)] if node.module in {"lurcher.faults", *EMULATION} else []
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in CARRIES | EMULATION]
        elif isinstance(node, ast.Attribute) and (node.attr == "pace" or (node.attr == "fault" and name_of(node.value) in CONFIG_NAMES)):
            found.append(f".{node.attr} at line {node.lineno}")
    return found


def test_what_decides_never_sees_pace_or_faults(graph: grimp.ImportGraph) -> None:
    """Sound, not only direct: over every module that a decision can run, through any chain of imports.

    None reaches the emulated device. None names a fault, the pace, or the whole configuration that carries them; so they can only
    see what is handed in, and the coordinator is handed the sections `[detect]` and `[plan]`.
    """
    seen = reachable(graph, DECIDING)
    assert not seen & EMULATION
    offences = {module: hidden_things_in(tree_of(module)) for module in seen - CARRIES}
    assert {module: found for module, found in offences.items() if found} == {}


def test_the_check_above_can_fail() -> None:
    for line in (
        "from lurcher.faults import factor_at",
        "from lurcher import faults",
        "from lurcher import config",
        "import lurcher.config as c",
        "import lurcher.model.pace",
        "from lurcher.model.link_pace import LinkPace",
        "from lurcher.config import JobConfig",
        "def cost(config): return config.pace.token_us",
        "def cost(self): return self.config.fault[0]",
    ):
        assert hidden_things_in(ast.parse(line)), line
    assert not hidden_things_in(ast.parse("from lurcher.config import DetectSection"))


def test_decisions_and_reports_reach_no_torch(graph: grimp.ImportGraph) -> None:
    chains = {module: graph.find_shortest_chain(module, "torch") for module in modules(graph, TORCH_FREE)} if "torch" in graph.modules else {}
    # The commands that train import the runtime inside their functions; everything else must have no way to torch at all.
    assert {module: chain for module, chain in chains.items() if chain and not module.startswith("lurcher.cli")} == {}


def test_decisions_and_reports_import_with_torch_blocked(graph: grimp.ImportGraph) -> None:
    names = sorted(modules(graph, TORCH_FREE))
    code = f"import importlib, sys; sys.modules['torch'] = None; sys.path.insert(0, {str(SOURCE)!r})\nfor name in {names!r}: importlib.import_module(name)\nprint(len({names!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == len(names)


def test_nobody_imports_the_commands(graph: grimp.ImportGraph) -> None:
    outside = {module for module in graph.modules if module.startswith("lurcher") and not module.startswith(("lurcher.cli", "lurcher.__main__"))}
    assert {module for module in outside if any(m.startswith("lurcher.cli") for m in graph.find_modules_directly_imported_by(module))} == set()


def test_no_module_keeps_state_or_reads_the_environment(graph: grimp.ImportGraph) -> None:
    """What starts processes, or runs as one, may touch it; everybody else gets what they need handed in."""
    offences = []
    for module in (m for m in graph.modules if m.startswith("lurcher")):
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Global):
                offences.append(f"{module}:{node.lineno} global {', '.join(node.names)}")
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") and module not in MAY_READ_ENVIRONMENT:
                offences.append(f"{module}:{node.lineno} {node.attr}")
    assert offences == []
