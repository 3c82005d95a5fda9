"""Whether imagined frames show the commanded motion: read by a scripted inverse dynamics, on imagined rollouts imagined again."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights
from worldrl.policies.exploration import Exploration
from worldrl.rewards.config import IdmConfig
from worldrl.rewards.motion.inverse_dynamics import Decoded, InverseDynamics
from worldrl.rewards.motion.readout import Column
from worldrl.rewards.motion.similarity import commanded_columns
from worldrl.rollout.imagined.policy_rollouts import imagine_policy_rows
from worldrl.rollout.trust.shown_motion import check_spacing, motion_error, rollout_motion_error


@dataclass
class Seer:
    """Reads the mean grey as the commanded x; keeps what it was shown."""

    columns: tuple[Column, ...] = (Column("state", 0, "x"), Column("command", 2, "z"), Column("command", 0, "x"))
    config: IdmConfig = field(default_factory=IdmConfig)
    frame_stride: int = 1
    shown: list[torch.Tensor] = field(default_factory=list)

    def decode(self, frames):
        self.shown.append(frames)
        grey = frames.float().mean(dim=(2, 3, 4)) / 255
        return Decoded(torch.stack([grey, 0 * grey, grey], dim=-1), torch.full((*grey.shape, 3), 0.5))


def test_normalised_error_compares_commanded_columns_alone():
    frames = torch.full((1, 2, 8, 8, 3), 255, dtype=torch.uint8)
    command = torch.zeros(1, 2, 7)
    command[0, :, 0] = torch.tensor([1.0, 2.0])  # reads 1
    command[0, 1, 2] = 0.5  # reads 0
    # Of two columns, errors over the deviation 0.5: none; then 2 and 1.
    assert motion_error(Seer(), frames, command)[0].tolist() == pytest.approx([0, (4 + 1) / 2])
    assert commanded_columns(Seer()) == ([1, 2], [2, 0])


def test_what_reads_nothing_commanded_or_other_spacing_is_refused():
    with initial_weights(0, "idm"):
        idm = InverseDynamics(IdmConfig(window=3), (Column("state", 0, "x"),), 4)
    with pytest.raises(SettingError, match=r"reads state\.x, and nothing that is commanded"):
        commanded_columns(idm)
    check_spacing(idm, 4)
    with pytest.raises(SettingError, match="4 control steps apart, these are 2 apart"):
        check_spacing(idm, 2)
    check_spacing(Seer(), 2)


def test_imagined_rollouts_repeat_to_the_bit(world_model, tiny_policy, make_record):
    """Two tasks in turn: rows count within their task, as they did when the rollouts were imagined."""
    policy = tiny_policy(image_size=16, chunk_length=4)
    seen, actions, records = {}, {}, {}
    for task in ("PickRedCube", "PickGreenCylinder"):
        records[task] = [make_record(grey, task=task) for grey in (20, 200)]
        shown = []
        acting = Watched(policy, shown)
        actions[task], _ = imagine_policy_rows(
            world_model, acting, records[task], 12, seed=3, exploration=Exploration()
        )
        seen[task] = shown
    starts = [record for of_task in records.values() for record in of_task]
    action, seer = torch.from_numpy(np.concatenate(list(actions.values()))), Seer()
    found = rollout_motion_error(world_model, seer, starts, action, seed=3)
    assert found.shape == (4, 6)  # two frames of each of three chunks
    for task, frames in zip(records, seer.shown, strict=True):
        for chunk in (1, 2):
            assert torch.equal(frames[:, 2 * chunk - 1], seen[task][chunk].image)
    other = Seer()
    rollout_motion_error(world_model, other, starts, action, seed=4)
    assert not torch.equal(other.shown[0], seer.shown[0])


class Watched:
    """A policy that keeps what it sees."""

    def __init__(self, policy, shown):
        self.policy, self.shown, self.actions, self.more = policy, shown, policy.actions, policy.more
        self.n_obs_steps = policy.n_obs_steps

    def act(self, obs, **over):
        self.shown.append(obs)
        return self.policy.act(obs, **over)
