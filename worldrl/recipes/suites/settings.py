"""Help texts of the settings that select a suite."""

from __future__ import annotations

from worldrl.rollout.suites.registry import suite_names

EMBEDDED = "embedded"
SUITE = f"embedded, {', '.join(suite_names())}, or an adapter of your own as FILE.py:Class"
SUITE_PYTHON = "interpreter that has the simulator of suite=FILE.py:Class; empty takes this one"
