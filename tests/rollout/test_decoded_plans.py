"""Plans read off frames: targets between frames by hand, and recorded motion executed again from what a reader says."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS, joint_targets
from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.rewards.motion.inverse_dynamics import Decoded
from worldrl.rewards.motion.readout import Column
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.imagined import starts
from worldrl.rollout.imagined.decoded_plans import check_targets, commanded, decoded, execute_recorded, joint_path
from worldrl.rollout.real.embedded import embedded_options
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EpisodeSpec

PAIR = joint_targets(("joint1", "gripper"), (-1.0, 0.0), (1.0, 1.0))
COLUMNS = (Column("command", 0, "joint1"), Column("command", 1, "gripper"))


def test_targets_between_frames_lie_evenly_and_within_the_range():
    told = torch.tensor([[0.0, 1.0]])
    read = torch.tensor([[[0.4, 1.0], [2.0, -0.2]]])
    path = joint_path(told, read, 2, PAIR)
    assert path.dtype == np.float32
    np.testing.assert_allclose(path[0], [[0.2, 1.0], [0.4, 1.0], [1.0, 0.4], [1.0, 0.0]], atol=1e-6)


def test_only_the_whole_command_of_a_robot_that_takes_targets_can_be_executed():
    check_targets(COLUMNS, PAIR)
    for columns, actions in ((COLUMNS[:1], PAIR), (COLUMNS[::-1], PAIR), ((Column("command", 0, "x"),), TOOL_ACTIONS)):
        with pytest.raises(SettingError, match=r"train-idm target=\[command\]"):
            check_targets(columns, actions)


@dataclass
class Knowing:
    """Reads the command of the one episode that it knows, off by ``error`` at every frame."""

    episode: Episode
    error: float
    frame_stride: int = 2

    def decode(self, frames):
        command = torch.from_numpy(self.episode.command[:: self.frame_stride].copy())[None] + self.error
        assert frames.shape[1] == command.shape[1]
        return Decoded(command, torch.zeros_like(command))


def demonstration(spec: EpisodeSpec, domain: str = "clean") -> Episode:
    options = replace(embedded_options([spec.task], 16), domain=domain)
    (episode,) = EmbeddedPlayer(options, workers=0).play([(spec, ExpertActor())], hold_steps=8)
    assert isinstance(episode, Episode)
    assert episode.success
    return episode


def test_true_readings_open_the_drawer_again_and_wrong_ones_do_not():
    episode = demonstration(EpisodeSpec("BimanualOpenDrawer", 0, 3))
    still = replace(episode, command=np.repeat(episode.command[:1], len(episode) + 1, axis=0))
    for knows, succeeds in ((episode, True), (still, False)):
        read = partial(decoded, Knowing(knows, 0.0), "head")
        assert execute_recorded([episode], 2, read).tolist() == [succeeds]
    assert execute_recorded([episode], 2, partial(commanded, 2)).tolist() == [True]


def test_a_randomised_episode_is_executed_on_the_table_that_it_was_recorded_on(monkeypatch):
    spec = EpisodeSpec("BimanualLiftPot", 1, 3)
    episode, opened, real = demonstration(spec, "randomised"), [], starts.EmbeddedSlots
    monkeypatch.setattr(starts, "EmbeddedSlots", lambda options: opened.append(options.domain) or real(options))
    again = starts.EmbeddedBackend("randomised").replay(spec.task, [(spec.index, spec.seed)], [episode.action])
    assert again.tolist() == [episode.first_success]
    assert execute_recorded([episode], 1, partial(commanded, 1)).tolist() == [True]
    assert opened == ["randomised", "randomised"]
