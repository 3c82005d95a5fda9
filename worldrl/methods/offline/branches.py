"""Imagination by branched rollouts: a few steps of the present policy in a world, from states of the dataset.

MBPO's scheme (Janner et al. 2019), the base of MOPO, MOBILE, COMBO, RAMBO and RAVL. ``penalty`` λ: r̃ = r - λ·U(s, a)
(MOPO); ``truncate_above``: a rollout ends after a step whose U exceeds this (NEUBAY, with the dataset's largest U).

Shapes legend: ``B`` rollouts, ``S`` observation, ``A`` action, ``N`` rows of the dataset.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.interfaces import Logs, OfflineAgent, StateWorld
from worldrl.core.transitions import Outcome, Transitions, concat


@dataclass
class BranchConfig:
    """Settings of branched rollouts."""

    starts: int = 50_000  # rollouts per generation.
    horizon: int = 5  # steps ``k`` after which a rollout is truncated.
    penalty: float = 0.0  # λ, 0 for none.
    truncate_above: float = math.inf  # largest uncertainty after which a rollout continues.

    def __post_init__(self) -> None:
        require_at_least_one(self, ("starts", "horizon"), of="branches")
        if self.penalty < 0:
            raise SettingError(f"branches.penalty must be 0 (none) or above, got {self.penalty}")


def penalised(outcome: Outcome, penalty: float) -> Tensor:
    """r̃ = r - λ·U, ``[B]`` (MOPO, eq. 7)."""
    return outcome.reward - penalty * outcome.uncertainty if penalty else outcome.reward


@torch.no_grad()
def branch(
    world: StateWorld, agent: OfflineAgent, index: Tensor, config: BranchConfig, *, generator: torch.Generator
) -> tuple[list[Transitions], list[Outcome]]:
    """Roll the agent out from rows ``index`` ``[B]`` of the world's data; by step the running rows and outcomes."""
    state, obs = world.start(index, generator=generator)
    rows: list[Transitions] = []
    outcomes: list[Outcome] = []
    for step in range(config.horizon):
        action = agent.act(obs, generator=generator)
        state, outcome = world.step(state, action, generator=generator)
        stop = outcome.uncertainty > config.truncate_above
        truncated = (torch.ones_like(stop) if step + 1 == config.horizon else stop) & ~outcome.terminated
        reward = penalised(outcome, config.penalty)
        rows.append(Transitions(obs, action, reward, outcome.obs, outcome.terminated, truncated))
        outcomes.append(outcome)
        obs, running = outcome.obs, ~(outcome.terminated | truncated)
        if not bool(running.all()):
            alive = running.nonzero()[:, 0]
            if not len(alive):
                break
            state, obs = world.select(state, alive), obs[alive]
    return rows, outcomes


class Branches:
    """An :class:`~worldrl.core.interfaces.Imagination` of rollouts from the world's first ``rows`` rows.

    Raises SettingError: the config needs an uncertainty and the world measures none.
    """

    def __init__(self, world: StateWorld, rows: int, config: BranchConfig):
        needs = config.penalty > 0 or config.truncate_above < math.inf
        if needs and not getattr(world, "measures_uncertainty", True):
            raise SettingError(
                f"penalty={config.penalty}, truncate_above={config.truncate_above}: the world measures no uncertainty; "
                "make it with uncertainty=max_sigma, epistemic_mean or disagreement, or set penalty=0"
            )
        self.world, self.rows, self.config = world, rows, config

    def generate(self, agent: Any, *, generator: torch.Generator) -> tuple[Transitions, Logs]:
        """Imagine one generation; logs are means over its rows, and the mean length of a rollout."""
        index = torch.randint(self.rows, (self.config.starts,), generator=generator, device=generator.device)
        parts, outcomes = branch(self.world, agent, index, self.config, generator=generator)
        rows = concat(parts)
        logs = {
            "imagination/rows": torch.tensor(float(len(rows))),
            "imagination/length": torch.tensor(len(rows) / self.config.starts),
            "imagination/reward": torch.cat([outcome.reward for outcome in outcomes]).mean(),
            "imagination/uncertainty": torch.cat([outcome.uncertainty for outcome in outcomes]).mean(),
            "imagination/terminated": rows.terminated.float().mean(),
        }
        return rows, logs
