"""Unit under test: ``worldrl/rollout/imagined/observation_pairs.py``: each pair shows one moment, recorded and imagined."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import SettingError
from worldrl.core.types import Imagined
from worldrl.rollout.imagined.observation_pairs import observation_pairs


@dataclass(frozen=True)
class Clock:
    """Rows of :class:`ClockWorld`: the control step, counted from the episode's first."""

    step: torch.Tensor
    command: torch.Tensor


class ClockWorld:
    """A world model whose image has the brightness of its control step, and whose command follows the actions."""

    chunk_length, memory_frames, frame_stride, more = 4, 2, 2, ()

    def __init__(self, embodiment):
        self.embodiment = embodiment

    def start(self, records):
        step = torch.tensor([record.step for record in records])
        return Clock(step, torch.from_numpy(np.stack([record.command for record in records])))

    def imagine(self, state: Clock, action: torch.Tensor, *, generators: Any):
        command = integrate_commands(self.embodiment, state.command, action)
        after = Clock(state.step + 4, command[:, -1])
        return after, Imagined(torch.zeros(len(action), 2, 1, 1, 1), (2, 4), command, torch.zeros(len(action), 2))

    def decode_newest(self, state: Clock, count: int) -> torch.Tensor:
        return state.step.to(torch.uint8)[:, None, None, None, None].expand(-1, count, 16, 16, 3).clone()


@pytest.fixture
def episodes(push_episode):
    """Of 9 to 20 steps; the frames of each are bright where the episode is late, so that a frame names its moment."""
    made = []
    for number in range(6):
        episode = push_episode(number, 9 + 2 * number, task="PickRedCube" if number % 2 else "PickGreenCylinder")
        late = np.arange(len(episode) + 1, dtype=np.uint8)[:, None, None, None, None]
        made.append(replace(episode, frames=np.broadcast_to(late, episode.frames.shape).copy()))
    return made


@pytest.fixture
def clock_world(scripted_world):
    return ClockWorld(scripted_world.embodiment)


def pairs_of(world, episodes, **over):
    return observation_pairs(world, episodes, (), **({"count": 100, "seed": 0, "series": "test"} | over))


def test_both_sides_of_a_pair_show_the_same_moment_after_the_same_actions(clock_world, episodes):
    pairs = pairs_of(clock_world, episodes)
    moment = pairs.recorded.image.flatten(1)
    assert torch.equal(moment, pairs.imagined.image.flatten(1))
    assert torch.allclose(pairs.recorded.command, pairs.imagined.command, atol=1e-5)
    assert pairs.recorded.task == pairs.imagined.task
    # From the beginning on, every fourth step but the last; from the middle on, others too.
    every_fourth = sum((len(episode) - 1) // 4 for episode in episodes)
    assert every_fourth <= sum(int(t) % 4 == 0 for t in moment[:, 0]) < len(pairs) <= 2 * every_fourth
    assert {int(t) for t in moment[:, 0]} >= {4, 8, 12}
    assert any(int(t) % 4 for t in moment[:, 0])


def test_actions_of_another_moment_would_show_in_the_command(clock_world, episodes):
    """The commands move between chunks, so that equal ones mean equal actions."""
    pairs = pairs_of(clock_world, episodes)
    away = (pairs.recorded.command[1:] - pairs.imagined.command[:-1]).abs().amax(dim=1)
    assert (away > 1e-3).float().mean() > 0.8


def test_the_count_bounds_the_episodes_and_the_seed_chooses_them(clock_world, episodes):
    few = pairs_of(clock_world, episodes, count=2)
    assert len(few) < len(pairs_of(clock_world, episodes))
    again, other = (pairs_of(clock_world, episodes, count=2, seed=seed) for seed in (0, 5))
    assert torch.equal(few.imagined.image, again.imagined.image)
    assert few.recorded.command.shape != other.recorded.command.shape or not torch.equal(
        few.recorded.command, other.recorded.command
    )


def test_short_episodes_and_unknown_observations_are_refused(clock_world, push_episode):
    with pytest.raises(SettingError, match="no episode has more than the 4 steps of a chunk"):
        pairs_of(clock_world, [push_episode(0, 4)])
    with pytest.raises(SettingError, match="wrist_image"):
        observation_pairs(clock_world, [push_episode(0, 9)], ("wrist_image",), count=1, seed=0, series="test")
