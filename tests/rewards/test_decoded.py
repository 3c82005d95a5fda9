import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.types import ImaginedVideos
from worldrl.registry import VIDEO_REWARDS
from worldrl.rewards.config import IdmConfig
from worldrl.rewards.motion.basis import measure_basis
from worldrl.rewards.motion.decoded import DecodedReward, idm_reward
from worldrl.rewards.motion.foresight import FeaturePredictor, ForesightConfig, foresight_reward
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.limits import JointLimits
from worldrl.rewards.motion.readout import Column
from worldrl.rewards.motion.similarity import similarity_reward


@dataclass
class Decoded:
    mean: torch.Tensor
    std: torch.Tensor


class Brightness:
    """Decodes two joints from the brightness of a frame."""

    def __init__(self):
        self.calls = 0

    def decode(self, frames):
        self.calls += 1
        light = frames.float().mean(dim=(2, 3, 4)) / 100
        return Decoded(torch.stack([light, -light], dim=-1), torch.zeros(*light.shape, 2))


def test_every_term_sees_the_joints_the_time_and_the_limits():
    decoder = Brightness()
    reward = DecodedReward(
        decoder,
        {
            "slow": lambda joints, dt, limits: -(joints.diff(dim=1) / dt).abs().amax(dim=(1, 2)),
            "inside": lambda joints, dt, limits: -(joints.abs() - limits).clamp_min(0).sum(dim=(1, 2)),
        },
        SimpleNamespace(limits=1.0, dt=0.1),
    )
    frames = torch.tensor([[50, 60, 90], [100, 100, 150]], dtype=torch.uint8).view(2, 3, 1, 1, 1).expand(2, 3, 4, 4, 3)
    found = reward.score(ImaginedVideos(frames, torch.zeros(2, 2, 1, 1, 1), 0.1, ["a", "b"]))
    torch.testing.assert_close(found, torch.tensor([[-3.0, 0.0], [-5.0, -1.0]]))
    assert (reward.names, decoder.calls) == (("slow", "inside"), 1)


def tiny_idm(positions=True, columns=None):
    """Two columns of a network that never learned, with the constants of a robot that may move as it likes."""
    idm = InverseDynamics(IdmConfig(width=8, blocks=1, keypoints=2, value_width=2, hidden=8), columns or COLUMNS)
    if positions:
        limits = JointLimits((1.0, 1.0), (1.0, 1.0), (-1.0, -1.0), (1.0, 1.0), (1.0, 1.0))
        real = torch.linspace(0, 0.5, 8)[None, :, None].expand(3, 8, 2)
        idm.basis = measure_basis(real, torch.zeros(3, 8, 2), 0.1, limits)
    return idm.eval()


COLUMNS = [Column("state", 0, "x"), Column("state", 1, "y")]
COMMANDED = [Column("command", 3, "joint4"), Column("state", 0, "x")]
VIDEOS = ImaginedVideos(torch.zeros(2, 6, 16, 16, 3, dtype=torch.uint8), torch.zeros(2, 5, 1, 1, 1), 0.1, ["a", "b"])


def test_a_saved_inverse_dynamics_is_a_reward(tmp_path):
    idm = tiny_idm()
    idm.save(tmp_path / "idm")
    reward = idm_reward(str(tmp_path / "idm"), ["motion", "executability"], torch.device("cpu"))
    q = idm.decode(VIDEOS.frames).mean
    expected = [idm.basis.rewards[name](q, 0.1, idm.basis.limits) for name in ("motion", "executability")]
    torch.testing.assert_close(reward.score(VIDEOS), torch.stack(expected, dim=1))
    every = idm_reward(str(tmp_path / "idm"), [], torch.device("cpu"))
    assert every.names == ("executability", "position_limits", "motion", "moving_executability")


def test_what_cannot_score_is_refused(tmp_path):
    cpu = torch.device("cpu")
    with pytest.raises(SettingError, match="worldrl train-idm"):
        idm_reward("", [], cpu)
    tiny_idm(positions=False).save(tmp_path / "actions")
    with pytest.raises(SettingError, match="reads no positions"):
        idm_reward(str(tmp_path / "actions"), [], cpu)
    tiny_idm().save(tmp_path / "idm")
    with pytest.raises(SettingError, match="did you mean 'motion'"):
        idm_reward(str(tmp_path / "idm"), ["notion"], cpu)
    slow = ImaginedVideos(VIDEOS.frames, VIDEOS.latent, 0.05, VIDEOS.instruction)
    with pytest.raises(SettingError, match=r"0\.1 s apart, the videos' are 0\.05 s"):
        idm_reward(str(tmp_path / "idm"), [], cpu).score(slow)


def test_similarity_compares_imagined_frames_with_commands(tmp_path):
    """The one commanded column that it reads, at every frame but the recorded first."""
    idm = tiny_idm(columns=COMMANDED)
    idm.deviation.copy_(torch.tensor([0.5, 9.0]))
    idm.save(tmp_path / "idm")
    reward = similarity_reward(str(tmp_path / "idm"), [], torch.device("cpu"))
    command = torch.zeros(2, 6, 7)
    command[..., 3] = idm.decode(VIDEOS.frames).mean[..., 0]
    command[:, 0, 3] = 99.0  # the first frame was recorded: it is not the model's to answer for
    command[1, 3:, 3] += 0.5  # one deviation off in three of five frames
    found = reward.score(replace(VIDEOS, command=command))
    off = math.exp(-1 / 0.25)
    torch.testing.assert_close(found, torch.tensor([[1.0], [(2 + 3 * off) / 5]]))
    assert reward.names == ("action_similarity",)
    with pytest.raises(SettingError, match="give conditioning=actions"):
        reward.score(VIDEOS)
    with pytest.raises(SettingError, match="unknown term"):
        similarity_reward(str(tmp_path / "idm"), ["motion"], torch.device("cpu"))
    tiny_idm().save(tmp_path / "state")
    with pytest.raises(SettingError, match="nothing that is commanded"):
        similarity_reward(str(tmp_path / "state"), [], torch.device("cpu"))


def test_foresight_reads_the_folder_that_train_idm_leaves(tmp_path):
    idm = tiny_idm()
    width = idm.encode(VIDEOS.frames).shape[-1]
    predictor = FeaturePredictor(ForesightConfig(context=2, ahead=1, hidden=4), width)
    idm.save(tmp_path / "idm")
    predictor.save(tmp_path / "foresight")
    reward = foresight_reward(str(tmp_path), [], torch.device("cpu"))
    noise = torch.randint(0, 256, VIDEOS.frames.shape, dtype=torch.uint8, generator=stream(0, "noise"))
    found = reward.score(replace(VIDEOS, frames=noise))
    torch.testing.assert_close(found[:, 0], predictor.moving_reward(idm.encode(noise)))
    assert (reward.names, tuple(found.shape)) == (("moving_foresight",), (2, 1))
    both = foresight_reward(str(tmp_path), ["physical_foresight", "moving_foresight"], torch.device("cpu"))
    two = both.score(replace(VIDEOS, frames=noise))
    torch.testing.assert_close(two, torch.stack([predictor.reward(idm.encode(noise)), found[:, 0]], dim=1))
    slow = ImaginedVideos(VIDEOS.frames, VIDEOS.latent, 0.05, VIDEOS.instruction)
    with pytest.raises(SettingError, match=r"0\.1 s apart, the videos' are 0\.05 s"):
        reward.score(slow)
    with pytest.raises(SettingError, match=r"foresight\.steps=1000"):
        foresight_reward("", [], torch.device("cpu"))


@pytest.mark.parametrize("name", ["idm", "similarity", "foresight"])
def test_rewards_are_found_by_name(name):
    assert callable(VIDEO_REWARDS.get(name))
