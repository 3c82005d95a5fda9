"""How far imagined successes count when inverse dynamics has read their frames."""

import pytest
import torch

from worldrl.algorithms.grpo import GrpoConfig, grpo_batch
from worldrl.algorithms.motion_trust import MotionCheck, MotionTrust, real_bound, worst_surprise
from worldrl.algorithms.self_training import grown
from worldrl.core.errors import SettingError
from worldrl.core.types import PolicyObs
from worldrl.rewards.columns import Column
from worldrl.rewards.inverse_dynamics import Decoded, IdmConfig
from worldrl.rollout.imagined_rollouts import ImaginedRollouts

SETTINGS = {"keep_low": 0, "keep_high": 1, "group_size": 2}


class Seer:
    """Reads the grey of a picture as the commanded x, with deviation 1."""

    columns = (Column("command", 0, "x"),)
    config = IdmConfig()
    frame_stride = 4

    def decode(self, frames):
        grey = frames.float().mean(dim=(2, 3, 4))[..., None]
        return Decoded(grey, torch.ones_like(grey))


def rollouts(tiny_policy, *, off):
    """Two chunks of four rollouts; ``off`` is how far frame and command are apart at frames 0, 1 and the end."""
    off = torch.tensor(off)  # [B, 3]
    image = torch.full((3, 4, 16, 16, 3), 7, dtype=torch.uint8)
    command = torch.zeros(3, 4, 7)
    command[..., 0] = 7 + off.T
    chunk = tiny_policy().act(
        PolicyObs(image[0], command[0], ["pick up"] * 4),
        generators=[torch.Generator().manual_seed(r) for r in range(4)],
    )
    return ImaginedRollouts(
        image=image[:2],
        command=command[:2],
        instruction=("pick up",) * 4,
        token=torch.stack(2 * [chunk.token]),
        logp=torch.stack(2 * [chunk.logp]),
        valid=torch.tensor([[True] * 4, [True, True, True, False]]),
        success=torch.tensor([True, True, False, True]),
        group=torch.tensor([0, 0, 1, 1]),
        task=("PickRedCube",) * 4,
        end=PolicyObs(image[2], command[2], ["pick up"] * 4),
    )


@pytest.fixture
def four(tiny_policy):
    """The second rollout's last frame is off by 4; the fourth's too, but it was over by then; first frames are real."""
    return rollouts(tiny_policy, off=[[9.0, 1.0, 0.5], [9.0, 0.0, 4.0], [0.0, 0.0, 0.0], [0.0, 2.0, 4.0]])


def test_the_worst_imagined_frame_decides(four):
    assert worst_surprise(Seer(), four).tolist() == [1, 16, 0, 4]
    assert MotionCheck(Seer(), 4.0, "mask").trust(four).tolist() == [1, 0, 1, 1]
    assert MotionCheck(Seer(), 4.0, "weight").trust(four).tolist() == [1, 0.25, 1, 1]


def test_self_training_leaves_a_masked_success_out(four, tiny_policy):
    batch = grown(four, tiny_policy(), MotionCheck(Seer(), 4.0, "mask").trust(four))
    # Kept chunks in order: rollouts 0, 1, 3 and then 0, 1; mates' successes 1, 1, 0.
    assert batch.weight.tolist() == [0, 0, 1, 0, 0]
    plain = grown(four, tiny_policy())
    half = grown(four, tiny_policy(), torch.full((4,), 0.5))
    torch.testing.assert_close(half.weight, 0.5 * plain.weight)


def test_grpo_rewards_what_is_shown(four):
    config = GrpoConfig(**SETTINGS)
    plain, _ = grpo_batch(four, config)
    trusted, _ = grpo_batch(four, config, torch.ones(4))
    torch.testing.assert_close(plain.advantage, trusted.advantage)
    assert len(plain) == 3  # the group that always succeeds teaches nothing
    masked, logs = grpo_batch(four, config, MotionCheck(Seer(), 4.0, "mask").trust(four))
    assert len(masked) == 7  # now its false success teaches
    assert masked.advantage[:2].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-4)
    assert logs["grpo/imagined_success"] == 0.75


def test_real_episodes_set_the_bound(push_episode):
    class Offset(Seer):
        def decode(self, frames):
            n = frames.shape[1]
            return Decoded(0.48 + torch.arange(n).float().view(1, n, 1), torch.ones(1, n, 1))

    episodes = [push_episode(n, steps) for n, steps in ((0, 4), (1, 8), (2, 3))]
    # Frames 0 and 4, or 0, 4 and 8: about 1 and 2 off at the end; the third episode is shorter than a chunk.
    bound = real_bound(Offset(), episodes, chunk_length=4, share=1.0)
    assert bound == pytest.approx(4, rel=0.2)
    assert real_bound(Offset(), episodes, chunk_length=4, share=0.01) == pytest.approx(1, rel=0.2)
    with pytest.raises(SettingError, match="no held-out practice episode has 40 steps"):
        real_bound(Seer(), episodes, chunk_length=40, share=0.9)


def test_what_cannot_be_is_refused(four):
    with pytest.raises(SettingError, match=r"idm\.use: unknown 'masks'; did you mean 'mask'"):
        MotionTrust(use="masks")
    with pytest.raises(SettingError, match=r"idm\.real_share"):
        MotionTrust(real_share=0.0)
    assert MotionTrust().use == "off"
    bare = ImaginedRollouts(**{name: getattr(four, name) for name in four.__dataclass_fields__ if name != "end"})
    with pytest.raises(SettingError, match="without their last frame"):
        worst_surprise(Seer(), bare)
