"""The import table of docs/architecture.md, read from that page and held against every import in the code.

Unit under test: the direction of imports. The page and the rule cannot part, because the page is the rule.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from worldrl.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "worldrl"
EDGE_FOR_JOBS = {"settings", "registry", "paths"}
WITH_SETTINGS = {"jobs", "recipes", "reproductions"}
HYDRA = {"hydra", "omegaconf"}
LIGHT = ("torch", "hydra", "omegaconf", "mujoco", "gymnasium", "numpy", "scipy", "av", "rich")


@dataclass(frozen=True)
class Import:
    """One import statement: the dotted module, and whether it runs only inside a function."""

    module: str
    lazy: bool
    line: int


@cache
def imports(source: str) -> list[Import]:
    """Every import of a file; ``from a import b`` counts as ``a.b``, since b may be a module."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, lazy, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"line {child.lineno}: imports are absolute in this project"
                yield from (Import(f"{child.module}.{alias.name}", lazy, child.lineno) for alias in child.names)
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from walk(child, lazy or inside or for_types)

    return list(walk(ast.parse(source), False))


def read_table(text: str) -> dict[str, set[str]]:
    """Room → rooms it may import, from the page's table; later rows may say "all above"."""
    allowed: dict[str, set[str]] = {}
    for room, rule in re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]+) \|$", text, flags=re.MULTILINE):
        above = set(allowed)
        if rule.startswith("nothing"):
            allowed[room] = set()
        elif rule.startswith("all above"):
            _, _, exception = rule.partition(" except ")
            allowed[room] = above - set(re.findall(r"\w+", exception))
        else:
            allowed[room] = set(re.findall(r"\w+", rule))
            assert allowed[room] <= above, f"{room} may import {allowed[room] - above}, which no earlier row names"
    return allowed


TABLE = read_table((ROOT / "docs" / "architecture.md").read_text())


def breaches(room: str, source: str) -> list[str]:
    """Imports of a file in ``room`` that the table forbids."""
    found = []
    edge = EDGE_FOR_JOBS if room in WITH_SETTINGS else set()
    for item in imports(source):
        parts = item.module.split(".")
        if parts[0] in HYDRA:
            found.append(f"line {item.line}: {item.module}: only settings.py knows Hydra")
        if parts[0] == "worldrl_envs" and not item.lazy:
            found.append(f"line {item.line}: {item.module}: worldrl_envs is imported inside functions only")
        if parts[0] == "worldrl" and parts[1:2] not in ([], ["__version__"]):
            target = parts[1]
            if target != room and target not in TABLE[room] | edge:
                found.append(f"line {item.line}: {room} may not import {item.module}")
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_table_names_every_room_and_only_rooms() -> None:
    folders = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()}
    assert set(TABLE) == folders


def test_imports_go_downwards() -> None:
    found = {path: breaches(room_of(path), path.read_text()) for path in FILES if path.parent != PACKAGE}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("core", "from worldrl.methods.rl.grpo import update"),
        ("core", "from worldrl import nn"),
        ("policies", "def f():\n    import worldrl.world_models.video.model"),
        ("evaluation", "from worldrl.methods import grpo"),
        ("rollout", "import worldrl_envs"),
        ("data", "from worldrl.settings import Preset"),
        ("jobs", "from omegaconf import OmegaConf"),
        ("jobs", "from worldrl.cli import main"),
    ],
)
def test_planted_breach_is_found(room: str, source: str) -> None:
    assert breaches(room, source)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("core", "from worldrl import __version__\nimport worldrl.core.errors"),
        ("rollout", "def worker():\n    import worldrl_envs"),
        ("jobs", "from worldrl.settings import setting\nfrom worldrl.methods import grpo"),
    ],
)
def test_allowed_import_is_not_reported(room: str, source: str) -> None:
    assert breaches(room, source) == []


def packages(path: Path) -> set[str]:
    """What a file imports, anywhere in it, by the first part of its name."""
    return {item.module.split(".")[0] for item in imports(path.read_text())}


def test_only_the_edge_knows_hydra() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py") if packages(path) & HYDRA} == {"settings"}


def test_envs_stand_alone() -> None:
    """What lerobot imports at its start needs neither; a world model imports worldrl with its first use."""
    envs = ROOT / "envs"
    assert [path for path in (envs / "worldrl_envs").rglob("*.py") if packages(path) & {"torch", "worldrl"}] == []
    for path in (envs / "lerobot_env_worldrl").rglob("*.py"):
        eager = {item.module.split(".")[0] for item in imports(path.read_text()) if not item.lazy}
        assert eager.isdisjoint({"torch", "worldrl", "worldrl_envs"}), path


WORKER_FILES = sorted((PACKAGE / "workers").rglob("*.py"))


def is_external(source: str) -> set[str]:
    """Packages of others, imported anywhere in a file."""
    roots = {item.module.split(".")[0] for item in imports(source)}
    return roots - set(sys.stdlib_module_names) - {"numpy", "worldrl"}


def test_workers_need_only_numpy() -> None:
    assert [path for path in WORKER_FILES if is_external(path.read_text())] == []
    assert is_external("def f():\n    import torch") == {"torch"}


def test_room_packages_import_nothing() -> None:
    assert [room for room in TABLE if imports((PACKAGE / room / "__init__.py").read_text())] == []


def test_importing_the_command_line_stays_light() -> None:
    program = f"import sys, worldrl.cli; print([name for name in {LIGHT!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_help_and_settings_load_neither_torch_nor_hydra() -> None:
    program = (
        "import sys, worldrl.cli, worldrl.settings; worldrl.cli.main(['--help'])\n"
        "print([name for name in ('torch', 'hydra', 'mujoco') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def file_graph(*, lazy: bool) -> dict[str, set[str]]:
    """Module → modules of worldrl that it imports; with ``lazy`` also inside functions and for types."""

    def targets(path: Path) -> set[str]:
        found = {item.module for item in imports(path.read_text()) if lazy or not item.lazy}
        return {name if name in MODULES else name.rpartition(".")[0] for name in found} & MODULES.keys()

    return {name: targets(path) - {name} for name, path in MODULES.items()}


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Modules that importing ``start`` imports, itself included."""
    seen, rest = {start}, [start]
    while rest:
        new = graph[rest.pop()] - seen
        seen |= new
        rest += new
    return seen


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that reach themselves."""
    return [name for name in graph if any(name in reached(graph, target) for target in graph[name])]


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(file_graph(lazy=False)) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]


def test_no_command_imports_another() -> None:
    jobs = {command.module for command in COMMANDS.values()}
    graph = file_graph(lazy=True)
    assert {name: graph[name] & jobs for name in jobs if graph[name] & jobs} == {}


def test_collect_imports_its_monitors_where_one_is_used() -> None:
    module, monitors = COMMANDS["collect"].module, "worldrl.recipes.monitor"
    used = [monitors in reached(file_graph(lazy=lazy), module) for lazy in (False, True)]
    assert used == [False, True]


ADAPTERS = re.compile(
    r"worldrl\.(rollout\.suites\.(libero|libero_files|maniskill|robotwin|isaac|warp)|workers\.(libero|isaac|robotwin|maniskill)\.worker)$"
)


@pytest.mark.parametrize(("command", "most"), [("compare", 40), ("train-vla", 140), ("evaluate", 110)])
def test_a_command_imports_few_files_and_no_suites_adapter(command: str, most: int) -> None:
    found = reached(file_graph(lazy=False), COMMANDS[command].module)
    assert len(found) <= most
    assert [name for name in found if ADAPTERS.match(name)] == []
