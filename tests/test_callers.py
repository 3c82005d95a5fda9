"""No code that only tests call, and no function that needs scrolling; each rule is first shown to catch a planted case.

Units under test: the source files themselves. A public function or class of ``worldrl`` must be reached from where
programs begin: the command line, the workers, the scripts, the environments, and the statements of a module that run on
import. References are followed by name through the imports; a string ``"module:name"`` refers as the registries do, and a
string that is a module's name (``"train-idm"``) refers to what such a module is asked for (``ASKED``).
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES = 60
"""From ``def`` to the last line, docstring included."""
ASKED = {"main", "settings_for", "run", "conclude", "numbers_read", "SETTINGS", "METHODS"}
"""What is asked for of a module that is imported by name: a command's job, a reproduction."""
BODY = "<body>"
_tree = cache(ast.parse)

LIBRARY = {
    # For people with a damaged dataset: error messages name them.
    "worldrl.data.lerobot.check",
    "worldrl.data.lerobot.writer:finalize_dataset",
    # The client of `worldrl serve-world-model`.
    "worldrl.rollout.serving.remote_world:RemoteWorld",
}
"""Documented for users of the library, without a caller of our own; a module, or ``module:name``."""

WAITING: set[str] = set()
"""Methods of papers that no command offers yet. This set only shrinks: a name goes when it gets its caller."""


@dataclass
class Module:
    """What one file defines at its top level, and where its other names come from."""

    units: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, source: str) -> "Module":
        tree, module = _tree(source), cls()
        for statement in tree.body:
            for name in _defined(statement):
                module.units.setdefault(name, []).append(statement)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module.imports |= {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                module.imports |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
        return module

    def definitions(self) -> list[str]:
        """Public functions and classes."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return [name for name, (first, *_) in self.units.items() if isinstance(first, kinds) and name[0] != "_"]


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return []
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        stored = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        return [node.id for node in stored if isinstance(node.ctx, ast.Store)] or [BODY]
    text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return [] if text else [BODY]


Unit = tuple[str, str]
"""A module and a name in it."""


class Code:
    """All modules, and what refers to what."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.modules = {name: Module.parse(source) for name, source in sources.items()}
        self.by_stem: dict[str, list[str]] = {}
        for name in self.modules:
            self.by_stem.setdefault(name.rpartition(".")[2], []).append(name)

    def reached(self, roots: list[Unit]) -> set[Unit]:
        """Everything that runs or may run, from the roots and from the bodies of all modules."""
        found: set[Unit] = set()
        waiting = [*roots, *((name, BODY) for name in self.modules)]
        while waiting:
            module, name = unit = waiting.pop()
            if unit not in found and module in self.modules and name in self.modules[module].units:
                found.add(unit)
                waiting += [u for part in self.modules[module].units[name] for u in self._references(module, part)]
        return found

    def _references(self, module: str, part: ast.stmt) -> Iterator[Unit]:
        here = self.modules[module]
        for node in ast.walk(part):
            if isinstance(node, ast.Name):
                yield (module, node.id) if node.id in here.units else here.imports.get(node.id, ("", ""))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield ".".join(filter(None, here.imports.get(node.value.id, ()))), node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from self._named(node.value)

    def _named(self, text: str) -> Iterator[Unit]:
        target = re.fullmatch(r"([\w.]+):(\w*)", text)
        for name in self.by_stem.get(target[1].rpartition(".")[2], ()) if target else ():
            # "package.module:" is the fixed half of a reference whose other half is looped over: all are meant.
            whole = target is not None and "." in target[1] and not target[2]
            yield from ((name, unit) for unit in self.modules[name].units if whole or (target and unit == target[2]))
        for name in self.by_stem.get(text.replace("-", "_").rpartition(".")[2], ()):
            if not name.endswith("." + text.replace("-", "_")):
                continue
            units = self.modules[name].units
            yield from ((name, unit) for unit in units if unit in ASKED or unit.endswith("Settings"))


def _without_caller(sources: dict[str, str]) -> set[str]:
    code = Code(sources)
    reached = code.reached(list(_roots(code)))
    return {
        f"{module}:{name}"
        for module, parsed in code.modules.items()
        for name in parsed.definitions()
        if module.startswith("worldrl.") and (module, name) not in reached
    }


def _sources() -> dict[str, str]:
    found = {}
    for folder, base in (("worldrl", ROOT), ("envs", ROOT / "envs"), ("scripts", ROOT)):
        for path in (ROOT / folder).rglob("*.py"):
            found[".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")] = path.read_text()
    return found


def _roots(code: Code) -> Iterator[Unit]:
    yield "worldrl", "main"
    for name, module in code.modules.items():
        if name.startswith("worldrl.workers."):
            yield name, "main"  # boot.py runs any of them
        if not name.startswith("worldrl."):
            yield from ((name, unit) for unit in module.units)


def _long_functions(source: str) -> list[str]:
    functions = [n for n in ast.walk(_tree(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = {f"{f.name} (line {f.lineno})": (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions}
    return [f"{name}: {count} lines" for name, count in lines.items() if count > MAX_LINES]


def test_every_function_has_a_caller_outside_tests() -> None:
    listed = LIBRARY | WAITING
    alone = _without_caller(_sources())
    unexpected = {unit for unit in alone if not {unit, unit.partition(":")[0]} & listed}
    assert unexpected == set(), "give it a caller in worldrl/, envs/ or scripts/, or remove it with its tests"
    settled = {entry for entry in listed if not any(entry in (unit, unit.partition(":")[0]) for unit in alone)}
    assert settled == set(), "has a caller now (or is gone): take it out of the list above"


def test_no_function_is_long() -> None:
    found = {name: _long_functions(source) for name, source in _sources().items()}
    assert {name: functions for name, functions in found.items() if functions} == {}


PLANTED = {
    "worldrl": "import importlib\n\ndef main(): return importlib.import_module('worldrl.jobs.' + 'tidy-up').main",
    "worldrl.jobs.tidy_up": (
        "from worldrl.core import tools\nfrom worldrl.core.tools import used as needed\n"
        "class TidyUpSettings: ...\ndef main(): needed(), tools.also_used(), 'tools:registered'\ndef left(): main()"
    ),
    "worldrl.core.tools": (
        "TABLE = {'a': tabled}\n\n"
        "def used(): return TABLE\ndef also_used(): ...\ndef registered(): ...\ndef tabled(): ...\n"
        "def _private(): unused()\ndef unused(): ...\nclass Unused:\n    def method(self): return unused()"
    ),
}


def test_planted_definitions_without_caller_are_found() -> None:
    alone = {"worldrl.jobs.tidy_up:left", "worldrl.core.tools:unused", "worldrl.core.tools:Unused"}
    assert _without_caller(PLANTED) == alone
    script = {"scripts.clean": "from worldrl.core.tools import unused\n\nunused()"}
    assert _without_caller(PLANTED | script) == alone - {"worldrl.core.tools:unused"}


def test_planted_long_function_is_found() -> None:
    body = "\n".join(["    x = 1"] * (MAX_LINES - 1))
    assert _long_functions(f"def f():\n{body}\n") == []
    assert _long_functions(f"class C:\n  def f():\n{body}\n    x = 2") == [f"f (line 2): {MAX_LINES + 1} lines"]
