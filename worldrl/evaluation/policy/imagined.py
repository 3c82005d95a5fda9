"""A policy's imagined outcomes from recorded start frames, saved batch by batch.

Shapes legend: ``E`` start frames, ``T`` control steps, ``N`` imagined frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream_seed
from worldrl.core.types import Episode
from worldrl.policies.exploration import Exploration
from worldrl.policies.remote.address import refuse_temperature
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.policy_folder import acting_policy
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts, imagine_policy_rows
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.world_models.loading import AnyVideoModel


@dataclass(frozen=True)
class Start:
    """The first frame of a recorded episode, and how many control steps are imagined from it."""

    episode: Episode
    steps: int


class Greedy:
    """A policy that acts greedily whatever generators and temperature it is given."""

    def __init__(self, policy: Any) -> None:
        self.actions, self.more, self.n_obs_steps = policy.actions, policy.more, policy.n_obs_steps
        self._policy = policy

    def act(self, obs: Any, *, generators: Any, **_: Any) -> Any:
        """Return its most probable chunk."""
        if self._policy.needs_noise:
            return self._policy.act(obs, generators=generators, temperature=0.0)
        return self._policy.act(obs, generators=None)


def imagined_outcomes(
    model: AnyVideoModel,
    folder: Path,
    starts: Sequence[Start],
    saved: Path,
    *,
    batch: int,
    temperature: float | None,
    seed: int,
    advance: Callable[[int], object],
) -> NDArray[np.bool_]:
    """Imagine the policy in ``folder`` from every start; return whether each rollout succeeds in imagination, ``[E]``.

    The noise depends on ``seed`` and the start, not on the policy. Each batch is saved to the folder ``saved``, and read where an
    earlier session imagined it. ``temperature=None`` is greedy. Raises ArtefactError (a damaged file or policy).
    """
    rule = SuccessRule.of(model.config.outcome)
    found = list[NDArray[np.bool_]]()
    refuse_temperature(folder, temperature)
    loaded = acting_policy(folder, str(model.device))
    with ExitStack() as stack:
        stack.callback(
            getattr(loaded, "close", lambda: None)
        )  # a lerobot policy has a worker, a remote one a connection
        policy = Greedy(loaded) if temperature is None else loaded
        for first in range(0, len(starts), batch):
            rows, file = starts[first : first + batch], saved / f"{first:05d}.npz"
            if not file.exists():
                drawn = Exploration(temperature or 1.0, 0.0)
                imagine_rows(model, policy, rows, drawn, seed=stream_seed(seed, "batch", first) % 2**31).save(file)
            rollouts = PolicyRollouts.load(file)
            if len(rollouts) != len(rows):
                raise SettingError(
                    f"{file}: holds {len(rollouts)} rollouts of {len(rows)}; remove it to imagine them again"
                )
            found.append(rollouts.success_step(rule) >= 0)
            advance(len(rows))
    return np.concatenate(found)


def imagine_rows(
    model: AnyVideoModel, policy: Any, starts: Sequence[Start], drawn: Exploration, *, seed: int
) -> PolicyRollouts:
    """Imagine one rollout per start; beyond its own steps a rollout has no success."""
    layout = {
        "memory_frames": model.memory_frames,
        "frame_stride": model.frame_stride,
        "source": "rank",
        "more": model.more,
    }
    records = [record_at(start.episode, 0, **layout) for start in starts]
    steps = -(-max(start.steps for start in starts) // model.chunk_length) * model.chunk_length
    action, probability = imagine_policy_rows(model, policy, records, steps, seed=seed, exploration=drawn)
    for row, start in enumerate(starts):
        probability[row, start.steps // model.frame_stride :] = 0
    index, names = np.arange(len(starts)), tuple(start.episode.task for start in starts)
    seeds = np.full(len(starts), seed, np.int64)
    return PolicyRollouts(names, index, seeds, action, probability, model.frame_stride, policy.actions)
