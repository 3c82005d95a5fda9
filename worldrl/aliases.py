"""Other names of commands and settings: those of earlier versions and those of other tools.

Old names are aliases: :func:`current_tokens` replaces them and reports each. Other tools' names (lerobot's, other
benchmarks') are refused with a hint, because the nearest spelling would be wrong: ``train-vla`` has ``policy.bins``,
but takes a policy by ``supervised``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from worldrl.core.errors import SettingError
from worldrl.core.renames import COMMANDS, SETTINGS, VALUES, current_key, current_value
from worldrl.streams import say

_SMOLVLA = (
    "a lerobot policy such as SmolVLA is a local folder; `hf download <user>/<policy> --local-dir FOLDER` gets it, and worldrl "
    "downloads none itself (docs/guide/lerobot.md)"
)
_IMPROVED = (
    f"{_SMOLVLA}; imagination shows the main camera, the command and the instruction only; a policy that needs a second camera or "
    "the measured state, as published ones do, can be measured (benchmark), not improved"
)
_MEASURED = {
    "checkpoint": ("policy", "a policy is its folder"),
    "policy.path": ("policy", _SMOLVLA),
    "env.task": ("tasks", ""),
    "task": ("tasks", ""),
}
HINTS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "train-vla": {
        "policy": ("supervised", _IMPROVED),
        "policy.path": ("supervised", _IMPROVED),
        "dataset": ("data", ""),
        "task": ("tasks", ""),
    },
    "train-policy": {
        "policy": ("start", f"it is the policy that is fine-tuned; {_SMOLVLA}"),
        "policy.path": ("start", f"it is the policy that is fine-tuned; {_SMOLVLA}"),
        "dataset": ("data", ""),
    },
    "benchmark": {
        **_MEASURED,
        "env": ("suite", ""),
        "env.type": ("suite", ""),
        "n_episodes": ("episodes", "initial states of each task"),
        "eval.n_episodes": ("episodes", "initial states of each task"),
    },
    "evaluate": {
        **_MEASURED,
        "n_episodes": ("episodes", "initial states of each task"),
        "eval.n_episodes": ("episodes", "initial states of each task"),
    },
}
"""Command → another tool's name → the setting here, and a remark."""
ALIASES: Mapping[str, str] = SETTINGS
"""Old name → new name, as ``core.renames`` writes them."""
OLD_VALUES: Mapping[str, Mapping[str, str]] = VALUES
"""Setting → old value → new value."""
OLD_COMMANDS: Mapping[str, str] = COMMANDS
"""Old command → new command."""
TOKEN = re.compile(r"((?:--\w+ )?[A-Za-z_]\w*(?:\.\w+)*)=(.*)", flags=re.DOTALL)


def hint(command: str, key: str) -> str | None:
    """A clause for the error about an unknown setting; None without an entry in ``HINTS``."""
    if key not in HINTS.get(command, {}):
        return None
    own, more = HINTS[command][key]
    return f"; here it is called {own}={': ' + more if more else ''}"


def current_command(name: str) -> tuple[str, list[str]]:
    """Return the present name of a command, and a note where the given one is old."""
    if name not in OLD_COMMANDS:
        return name, []
    return OLD_COMMANDS[name], [f"command {name!r} is now called {OLD_COMMANDS[name]!r}; the old name still works"]


def current_tokens(command: str, tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """Write ``key=value`` tokens in present names; tokens of another form stay. Also returns one note per old name or value.

    Raises SettingError (a setting is given by its old and its new name).
    """
    current, notes, typed = list[str](), list[str](), dict[str, str]()
    for token in tokens:
        match = TOKEN.fullmatch(token)
        if match is None:
            current.append(token)
            continue
        old, text = match[1], match[2]
        new = current_key(old, command)
        value = current_value(new, text)
        if new in typed and old != typed[new]:
            other = typed[new]
            raise SettingError(f"{old} and {other} are names of one setting, and both are given; give {new} only")
        typed[new] = old
        if old != new:
            notes.append(f"setting {old!r} is now called {new!r}; the old name still works")
        if value != text:
            notes.append(f"value {text!r} of {new!r} is now called {value!r}; the old name still works")
        current.append(f"{new}={value}")
    return current, notes


def announce(notes: Sequence[str]) -> None:
    """Write notes on old names to stderr, one line each."""
    for note in notes:
        say(f"worldrl: {note}")


def ungrouped(groups: Sequence[str], tokens: Sequence[str]) -> list[str]:
    """Write ``--group name=value`` as ``group.name=value``; SettingError if nothing follows the flag."""
    words = iter(tokens)
    plain: list[str] = []
    for word in words:
        if word.removeprefix("--") in groups and word.startswith("--"):
            setting = next(words, None)
            if setting is None:
                raise SettingError(f"{word}: one of its settings must follow, for example {word} diff=0.05")
            plain.append(f"{word[2:]}.{setting}")
        else:
            plain.append(word)
    return plain
