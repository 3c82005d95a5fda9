"""Units under test: ``worldrl.recipes.motion.idm_stages``: how clips are cut, and what the constants of the motion rewards are measured on."""

import numpy as np
import pytest
import torch

from worldrl.core.types import Episode
from worldrl.recipes.motion.idm_stages import beginnings, clips, motion_basis, through_codec
from worldrl.rewards.config import IdmConfig
from worldrl.rewards.motion.executability import refit
from worldrl.rewards.motion.inverse_dynamics import Decoded, InverseDynamics
from worldrl.rewards.motion.limits import JointLimits
from worldrl.rewards.motion.readout import choose_columns, recorded_names

LOOK = {"frame_stride": 1, "camera": "scene"}


class Brightness(InverseDynamics):
    """Reads the mean of the image as its one column."""

    def decode(self, frames, *, batch=256):
        mean = frames.float().mean(dim=(2, 3, 4))[..., None] / 255
        return Decoded(mean, torch.ones_like(mean))


@pytest.fixture
def idm(robot):
    return Brightness(IdmConfig(width=8, blocks=1), choose_columns(["command.x"], recorded_names(robot)))


@pytest.fixture
def late(push_episode):
    """Episodes of 30 steps that move at their very end alone."""

    def make(number: int) -> Episode:
        episode = push_episode(number, 30)
        episode.command[:, 0] = 0.5
        episode.command[-3:, 0] = [0.55, 0.6, 0.65]
        return episode

    return [make(number) for number in range(4)]


def test_clips_overlap_and_reach_the_end(push_episode, robot):
    episodes, columns = [push_episode(n, 19) for n in range(2)], choose_columns(["command"], recorded_names(robot))
    cut = clips(episodes, columns, frames=8, apart=4, **LOOK)
    assert cut.frames.shape[:2] == cut.values.shape[:2] == (2 * 4, 8)  # of 20 frames: 0, 4, 8, 12
    assert torch.equal(cut.values[3, -1], torch.from_numpy(episodes[0].command[-1]))
    assert torch.equal(cut.first[5], torch.from_numpy(episodes[1].frames[0, 0]))
    assert len(clips(episodes, columns, frames=8, **LOOK).frames) == 2 * 2  # one after the other
    assert beginnings(11, 4, whole=True) == [0, 4, 8, 11]
    assert beginnings(11, 4, whole=False) == [0, 4, 8]
    assert beginnings(-1, 4, whole=True) == []


def test_what_moves_at_the_end_of_an_episode_is_within_the_bounds(idm, late):
    """Clips one after the other would leave it out: 31 frames hold two clips of 14."""
    basis, cut, _, _ = motion_basis(idm, late, late, frames=14, dt=0.05, limits=None, restore=None, **LOOK)
    assert basis.limits.velocity[0] > 0.05 / 0.05
    assert basis.limits.high[0] > 0.65
    assert float(cut.values[..., 0].max()) == pytest.approx(0.65)


def test_the_noise_floor_is_that_of_frames_through_the_codec(idm, push_episode, make_world_model):
    """Real clips look as imagined ones do, and a still life trembles as an imagined one would."""
    model, episodes = make_world_model(size=16), [push_episode(n, 19) for n in range(3)]
    limits = JointLimits((1.0,), (1.0,), (-1.0,), (1.0,), (1.0,))

    def measured(restore):
        return motion_basis(idm, episodes, episodes, frames=8, dt=0.05, limits=limits, restore=restore, **LOOK)

    plain, cut, _, _ = measured(None)
    assert plain.motion_floor == 0  # one image, read again and again
    restore = through_codec(model, noise=0.3)
    noisy, _, real, still = measured(restore)
    assert noisy.motion_floor > 0
    assert still[0].std() > 0
    first = cut.first[:1].expand(8, -1, -1, -1)
    torch.testing.assert_close(real[0], idm.decode(restore(cut.frames[0], first)[None]).mean[0])
    assert noisy.constants.p0 == refit(real, 0.05, limits).p0 != plain.constants.p0


def test_noise_of_the_codec_repeats_and_differs_from_frame_to_frame(make_world_model):
    model, frame = make_world_model(size=16), np.full((5, 16, 16, 3), 90, np.uint8)
    shown = [through_codec(model, noise=n)(*2 * (torch.from_numpy(frame),)) for n in (0.3, 0.3, 0.0)]
    assert torch.equal(shown[0], shown[1])
    assert not torch.equal(shown[0][0], shown[0][1])
    assert torch.equal(shown[2][0], shown[2][1])
