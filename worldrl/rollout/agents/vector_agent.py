"""Offline agents (``worldrl train-offline``) in a suite: their folders' facts, and how they act.

Such an agent acts on a suite's own vector and has no images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError
from worldrl.core.storage.artefact import artefact_hash, read_config
from worldrl.rollout.real.rows import Actor, Row
from worldrl.rollout.vector.episodes import Acts

KIND = "offline-agent"
VECTOR = "policy"
"""A suite's name for the vector of such agents."""
UNKNOWN_SIZE = 0
"""Size of a suite's vector before its worker has stated it."""


@dataclass(frozen=True)
class VectorFacts:
    """Facts of an agent's folder.

    ``size`` is that of its vector; ``low`` and ``high`` bound its actions, in units of ``trained_on``, the environment
    or dataset of its training. ``hash`` identifies weights and settings.
    """

    size: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    trained_on: str
    hash: str


def vector_facts(folder: Path) -> VectorFacts:
    """Read an agent's facts.

    Raises ArtefactError (no saved agent in that folder). Raises SettingError (its folder lacks the bounds of its
    actions).
    """
    config = read_config(folder, kind=KIND)
    space = config.get("space")
    if space is None:
        raise SettingError(
            f"{folder}: the agent does not say the bounds of its actions; train it again with worldrl train-offline"
        )
    low, high = (tuple(float(number) for number in space[end]) for end in ("low", "high"))
    size = len(config["facts"]["obs_mean"])
    return VectorFacts(size, low, high, str(space["trained_on"]), artefact_hash(folder))


def require_vector_fits(folder: Path, actions: ActionSpec, where: str, *, shown: int | None) -> None:
    """Refuse an agent whose vector or actions are not those of the suite ``where``.

    ``shown`` is the size of the suite's vector, :data:`UNKNOWN_SIZE`, or None where the suite has none. Raises
    SettingError (with both specs side by side, and what helps).
    """
    facts = vector_facts(folder)
    fits = shown in (UNKNOWN_SIZE, facts.size) and facts.low == actions.low and facts.high == actions.high
    if not fits:
        have = {None: "not shown", UNKNOWN_SIZE: "shown, its size given by the worker"}.get(shown, f"({shown},)")
        rows = [
            (f"the agent, of {facts.trained_on}", "the suite shows"),
            (f"{VECTOR} ({facts.size},)", f"{VECTOR} {have}"),
            (f"action {_bounds(facts.low, facts.high)}", f"action {_bounds(actions.low, actions.high)}"),
        ]
        width = max(len(left) for left, _ in rows)
        table = "\n".join(f"  {left:<{width}} | {right}" for left, right in rows)
        raise SettingError(
            f"{folder} does not fit {where}\n{table}\n"
            "nearest adapter: none: train the agent on what this suite shows and takes, or give a policy of images"
        )


def _bounds(low: Sequence[float], high: Sequence[float]) -> str:
    ends = sorted({f"[{a:g}, {b:g}]" for a, b in zip(low, high, strict=True)})
    return f"({len(low)},) in {' or '.join(ends)}"


@dataclass(frozen=True, eq=False)
class VectorActor:
    """A loaded agent on vectors, its bounds of actions and its device; it takes the most likely actions."""

    agent: Acts
    low: tuple[float, ...]
    high: tuple[float, ...]
    device: str = "cpu"
    kind: ClassVar[str] = "vector"

    def build(self) -> Actor:
        """Make the actor."""
        return _VectorActor(self)


class _VectorActor:
    """Decides row by row: a matrix product over several rows rounds differently for each number of rows."""

    images_needed = 0

    def __init__(self, spec: VectorActor) -> None:
        self._spec = spec
        low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def begin(self, row: Row) -> None:
        """Keep no state."""

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        return np.stack([self._action(row) for row in rows])[:, None]

    def _action(self, row: Row) -> NDArray[np.float32]:
        obs = torch.from_numpy(np.asarray(row.obs[VECTOR], np.float32)).to(self._spec.device)
        with torch.inference_mode():
            chosen = self._spec.agent.act(obs[None], generator=None)[0].float().cpu().numpy()
        return np.asarray(self._middle + self._half * chosen, np.float32)
