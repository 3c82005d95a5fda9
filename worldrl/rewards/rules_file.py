"""The file of rules: ``rules``, a name and a text each; ``inverse_dynamics``, where they score generated videos.

.. code-block:: yaml

    rules:
      above_the_table: always(z >= 0.01)
      lifts_what_it_touches: always(implies(contact, eventually(z >= 0.1, 0, 2)))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from worldrl.core.errors import SettingError
from worldrl.rewards.temporal_logic import Rule

FIELDS = ("rules", "inverse_dynamics")
EXAMPLE = "write for example\nrules:\n  above_the_table: always(z >= 0.01)"


@dataclass(frozen=True)
class Rules:
    """What the file says."""

    rules: tuple[Rule, ...]
    inverse_dynamics: Path | None = None  # relative to the file

    @classmethod
    def read(cls, file: Path) -> Rules:
        """Read a file; SettingError where it is missing, no rules, or a rule cannot be read."""
        try:
            content: Any = yaml.safe_load(file.read_text())
        except OSError as error:
            raise SettingError(f"rules: {file}: {error.strerror}; {EXAMPLE}") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise SettingError(f"rules: {file} is not readable as YAML: {error}") from error
        texts = content.get("rules") if isinstance(content, dict) else None
        if not isinstance(texts, dict) or not texts:
            raise SettingError(f"rules: {file} names no rules; {EXAMPLE}")
        if unknown := sorted(set(map(str, content)) - set(FIELDS)):
            raise SettingError(f"rules: {file} has an unknown field {unknown[0]!r}; there are {', '.join(FIELDS)}")
        if faulty := [name for name, text in texts.items() if not isinstance(name, str) or not isinstance(text, str)]:
            raise SettingError(f"rules: {file}: {faulty[0]} needs a name and a text; {EXAMPLE}")
        decoder = content.get("inverse_dynamics")
        if decoder is not None and not isinstance(decoder, str):
            raise SettingError(f"rules: {file}: inverse_dynamics must be a folder, got {decoder!r}")
        rules = tuple(Rule(name, text) for name, text in texts.items())
        return cls(rules, None if decoder is None else file.parent / decoder)
