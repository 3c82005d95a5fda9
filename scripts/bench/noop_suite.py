"""A suite without physics: each episode ends after one step. What it costs is the way to a worker and back."""

from typing import Any

import numpy as np


class Nothing:
    """One environment."""

    def reset(self, init_id: int, seed: int, *, render: bool) -> dict[str, Any]:
        """Return a state that is its number."""
        return {"state": np.array([init_id], np.float64), "success": np.array(False)}

    def step(self, action: Any, *, render: bool) -> dict[str, Any]:
        """Succeed."""
        return {"state": np.array([action[0]], np.float64), "success": np.array(True)}

    def close(self) -> None:
        """Nothing to release."""


class Noop:
    """The suite."""

    def describe(self) -> dict[str, Any]:
        """One task."""
        return {"tasks": [{"name": "nothing", "instruction": "do nothing"}]}

    def make(self, task: str) -> Nothing:
        """Return an environment."""
        return Nothing()
