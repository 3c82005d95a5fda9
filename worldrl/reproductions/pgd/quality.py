"""Likelihood against dynamics error of imagined steps, measured for ``pgd`` in the true pendulum.

Noise on the policy's actions lowers the likelihood of the ensemble's rollouts, guidance raises that of guided
trajectories; errors are compared at equal likelihood. Shapes: ``B`` rows, ``L`` steps of a trajectory.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from worldrl.core.rng import stream
from worldrl.core.transitions import Transitions, concat
from worldrl.methods.offline.td3_bc import Td3Bc
from worldrl.reproductions.neubay.pendulum import observe, swing
from worldrl.world_models.state.ensemble_world import EnsembleWorld
from worldrl.world_models.state.guided_rollouts import GuidedRollouts

NOISES = (0.0, 0.25, 0.5, 1.0, 2.0)  # Deviations of the noise on the target policy's actions in the ensemble's rollouts
SHARES = (0.0, 0.25, 0.5, 1.0, 2.0)  # Shares of the guidance coefficient in guided trajectories
KINDS = ("ensemble", "guided")
LEAST_ERROR = 1e-12  # Smaller errors count as this in logarithms


def measure(
    policy: Td3Bc,
    world: EnsembleWorld,
    policy_rollouts: Callable[[float], GuidedRollouts],
    std: Tensor,
    *,
    rollouts: int,
    length: int,
    seed: int,
) -> dict[str, list[float]]:
    """Measure both sources: mean log-likelihood and log10 dynamics error at several distances from the target policy.

    ``policy_rollouts`` maps a share of the guidance to trajectories of L = ``length`` steps, ``rollouts`` of each
    point; ``std`` are the deviations of the observations ``[S]``.
    """
    found: dict[str, list[float]] = {f"{kind}_{key}": [] for kind in KINDS for key in ("log_prob", "error")}
    for noise, share in zip(NOISES, SHARES, strict=True):
        draws = stream(seed, "pgd", "quality", int(1000 * share))
        imagined = {
            "ensemble": roll_out(world, policy, rollouts, length, noise, generator=draws),
            "guided": policy_rollouts(share).generate(policy, generator=draws)[0],
        }
        for kind, steps in imagined.items():
            found[f"{kind}_log_prob"].append(float(policy.log_prob(steps.obs, steps.action).detach().mean()))
            found[f"{kind}_error"].append(math.log10(max(float(step_error(steps, std).mean()), LEAST_ERROR)))
    return found


@torch.no_grad()
def roll_out(
    world: EnsembleWorld, policy: Td3Bc, rollouts: int, length: int, noise: float, *, generator: torch.Generator
) -> Transitions:
    """Follow the target policy, with noise on its actions, for L - 1 steps from recorded states."""
    index = torch.randint(len(world.starts), (rollouts,), generator=generator)
    state, obs = world.start(index, generator=generator)
    parts, no = [], torch.zeros(rollouts, dtype=torch.bool)
    for _ in range(length - 1):
        action = policy.act(obs, generator=None)
        action = (action + noise * torch.randn(action.shape, generator=generator)).clamp(-1, 1)
        state, outcome = world.step(state, action, generator=generator)
        parts.append(Transitions(obs, action, outcome.reward, outcome.obs, no, no))
        obs = outcome.obs
    return concat(parts)


def step_error(rows: Transitions, std: Tensor) -> Tensor:
    """Mean over dimensions of ((s' - true s') / std)², ``[B]``; the pendulum starts at the angle of s."""
    angle, speed = torch.atan2(rows.obs[:, 1], rows.obs[:, 0]), rows.obs[:, 2]
    true = observe(*swing(angle, speed, rows.action)[:2])
    return ((rows.next_obs - true) / std).square().mean(1)


def log_ratio(found: Mapping[str, Sequence[float]]) -> float:
    """Return log10 of the ensemble's error over the guided one's, at the guided likelihoods but the unguided one's.

    The ensemble's curve is interpolated, and constant beyond its ends: the policy itself and pure noise.
    """
    order = np.argsort(found["ensemble_log_prob"])
    at, error = (np.array(found[f"ensemble_{key}"])[order] for key in ("log_prob", "error"))
    there = np.interp(found["guided_log_prob"][1:], at, error)
    return float(np.mean(there - np.array(found["guided_error"][1:])))
