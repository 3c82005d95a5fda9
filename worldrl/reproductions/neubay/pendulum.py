"""Gymnasium's ``Pendulum-v1`` as a function of tensors, many at once, and a noisy controller that records data in it.

    θ̈ = 3g/2l sin θ + 3/ml² u,   |u| ≤ 2,   |θ̇| ≤ 8,   reward -(θ² + 0.1 θ̇² + 0.001 u²),   θ = 0 upright

A test compares the step with the real environment. Rewards are divided by 10 here, so that values are between -55 and 0
at a discount of 0.97.

Shapes legend: ``B`` pendulums.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from worldrl.core.transitions import Transitions, concat

STEPS = 200  # Gymnasium's time limit
GRAVITY, STEP_S, LARGEST_SPEED, LARGEST_TORQUE = 10.0, 0.05, 8.0, 2.0
REWARD_SCALE = 0.1
NOISE, RANDOM = 0.5, 0.3
"""The controller's torque noise in units of the largest torque, and its share of uniform actions."""


def observe(angle: Tensor, speed: Tensor) -> Tensor:
    """Return (cos θ, sin θ, θ̇), ``[B, 3]``."""
    return torch.stack([angle.cos(), angle.sin(), speed], -1)


def swing(angle: Tensor, speed: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take one step with torques ``[B, 1]`` in [-1, 1]; return θ, θ̇ and the scaled reward, ``[B]`` each."""
    torque = LARGEST_TORQUE * action[:, 0].clamp(-1, 1)
    wrapped = torch.remainder(angle + torch.pi, 2 * torch.pi) - torch.pi
    reward = -(wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2)
    faster = speed + (1.5 * GRAVITY * angle.sin() + 3 * torque) * STEP_S
    faster = faster.clamp(-LARGEST_SPEED, LARGEST_SPEED)
    return angle + faster * STEP_S, faster, REWARD_SCALE * reward


def hang(rows: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw initial angles and speeds as Gymnasium does: uniform in [-π, π] and [-1, 1]."""
    return torch.pi * (2 * torch.rand(rows, generator=generator) - 1), 2 * torch.rand(rows, generator=generator) - 1


def clumsy(angle: Tensor, speed: Tensor, *, generator: torch.Generator) -> Tensor:
    """Pump energy below, balance on top, with much noise: actions ``[B, 1]``."""
    height, energy = angle.cos(), speed**2 / 6 + GRAVITY / 2 * (angle.cos() - 1)
    wrapped = torch.remainder(angle + torch.pi, 2 * torch.pi) - torch.pi
    wanted = torch.where(height > 0.9, -4 * wrapped - speed, torch.sign(speed) * torch.sign(-energy))
    noisy = wanted.clamp(-1, 1) + NOISE * torch.randn(len(angle), generator=generator)
    uniform = 2 * torch.rand(len(angle), generator=generator) - 1
    guess = torch.rand(len(angle), generator=generator) < RANDOM
    return torch.where(guess, uniform, noisy.clamp(-1, 1))[:, None]


def record(episodes: int, *, generator: torch.Generator) -> tuple[Transitions, Tensor]:
    """Record whole episodes of the noisy controller; return their rows in blocks, and each row's episode."""
    angle, speed = hang(episodes, generator=generator)
    no = torch.zeros(episodes, dtype=torch.bool)
    parts = []
    for step in range(STEPS):
        action = clumsy(angle, speed, generator=generator)
        obs = observe(angle, speed)
        angle, speed, reward = swing(angle, speed, action)
        parts.append(Transitions(obs, action, reward, observe(angle, speed), no, no | (step + 1 == STEPS)))
    order = torch.arange(episodes * STEPS).reshape(STEPS, episodes).T.flatten()
    return concat(parts).select(order), torch.arange(episodes).repeat_interleave(STEPS)


@torch.no_grad()
def play(act: Callable[[Tensor], Tensor], episodes: int, *, generator: torch.Generator) -> Tensor:
    """Play true episodes, ``act`` mapping ``[B, 3]`` to ``[B, 1]``; return their returns ``[B]`` in Gymnasium's units."""
    angle, speed = hang(episodes, generator=generator)
    total = torch.zeros(episodes)
    for _ in range(STEPS):
        angle, speed, reward = swing(angle, speed, act(observe(angle, speed)))
        total = total + reward
    return total / REWARD_SCALE
