"""Names in code follow docs/glossary.md.

Unit under test: identifiers of worldrl, envs and scripts. Words with an ordinary use are refused by reading, not here.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("worldrl", "envs", "scripts") for path in (ROOT / folder).rglob("*.py"))
REPLACED = {
    "juror": "member", "parting": "divergence_step", "harvest": "select", "mourn": "replace", "bury": "restart",
    "habit": "correlated_noise", "mood": "state", "prolong": "extend", "recollection": "recurrent_state",
    "arena": "suite", "opinion": "resampled", "opinions": "resampled", "dream": "imagined", "dreams": "imagined",
    "foreign": "external", "grown": "selected",
}  # fmt: skip
"""Word → word to use; parts of names, as in ``open_foreign``."""


def names(source: str) -> set[str]:
    """Every name that a file defines or uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def replaced(source: str) -> dict[str, str]:
    """Name → word to use, of names with a replaced word in them."""
    parts = {name: {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)} for name in names(source)}
    return {name: REPLACED[word] for name, words in sorted(parts.items()) for word in words & REPLACED.keys()}


def test_no_name_has_a_replaced_word() -> None:
    found = {path: replaced(path.read_text()) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}
    assert [path for path in FILES if set(re.findall(r"[a-z]+", path.stem)) & REPLACED.keys()] == []


def test_planted_names_are_found() -> None:
    source = "def open_foreign(): ...\nclass OutcomeJuror: ...\nx.dream_on = practise_arena"
    assert replaced(source) == {
        "OutcomeJuror": "member", "dream_on": "imagined", "open_foreign": "external", "practise_arena": "suite",
    }  # fmt: skip
