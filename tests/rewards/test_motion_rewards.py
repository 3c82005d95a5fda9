"""The other rewards on motion and their mixture, on cases worked out by hand."""

import math

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.rewards.mixing import group_normalised, mix
from worldrl.rewards.motion.acceptance import acceptance, blurred, spoilt
from worldrl.rewards.motion.similarity import action_similarity, normalised_error

# --- command against image ----------------------------------------------------------------------------------------


def test_action_similarity_by_hand():
    decoded = torch.tensor([[[0.0, 0.0], [1.0, 2.0]]])
    commanded, deviation = torch.zeros(1, 2, 2), torch.tensor([1.0, 2.0])
    assert action_similarity(decoded, commanded, deviation, 2.0).item() == pytest.approx((1 + math.exp(-0.5)) / 2)


def test_normalised_error_is_one_on_honest_frames():
    deviation = 0.1 + torch.rand(50, 20, 3, generator=stream(0, "deviation"))
    true = torch.randn(50, 20, 3, generator=stream(0, "true"))
    read = true + deviation * torch.randn(50, 20, 3, generator=stream(0, "error"))
    assert normalised_error(read, deviation, true).mean().item() == pytest.approx(1, abs=0.05)
    assert normalised_error(read, deviation, true + 1).mean() > 5


# --- mixture --------------------------------------------------------------------------------------------------------


def test_a_rewards_unit_does_not_change_the_mixture():
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    group = torch.zeros(4, dtype=torch.int64)
    mixed = mix(rewards, group)
    assert mix(rewards * torch.tensor([1.0, 100.0]), group).tolist() == pytest.approx(mixed.tolist(), abs=1e-3)
    assert mixed[2] > mixed[0]
    assert mixed[0].item() == pytest.approx(mixed[1].item())
    assert mixed[0] > mixed[3]
    assert mixed.mean().item() == pytest.approx(0)
    heavier = mix(rewards, group, weights=[2, 1])
    assert heavier[0] > heavier[1]


def test_groups_are_scattered_by_id_and_may_have_any_size():
    rewards = torch.randn(7, 2, generator=stream(0, "rewards"), dtype=torch.float64)
    group = torch.tensor([5, 0, 5, 0, 5, 2, 0])
    normal = group_normalised(rewards, group)
    for g in (0, 5):
        part = rewards[group == g]
        expected = (part - part.mean(dim=0)) / (part.std(dim=0) + 1e-4)
        torch.testing.assert_close(normal[group == g], expected)
    assert normal[5].tolist() == [0, 0]  # alone
    order = torch.tensor([6, 2, 0, 4, 1, 3, 5])
    torch.testing.assert_close(mix(rewards[order], group[order]), mix(rewards, group)[order])
    assert mix(torch.ones(4, 2), torch.tensor([0, 0, 1, 1])).tolist() == [0, 0, 0, 0]


def test_mixtures_that_do_not_fit_are_refused():
    with pytest.raises(SettingError, match="as many weights"):
        mix(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), weights=[1])
    with pytest.raises(SettingError, match=r"rewards \[N, K\]"):
        mix(torch.zeros(4), torch.zeros(4, dtype=torch.int64))


# --- acceptance probe -----------------------------------------------------------------------------------------------


def clips() -> tuple[torch.Tensor, torch.Tensor]:
    """A bright square walks to the right, in every video from somewhere else; the command is where it is."""
    place = torch.arange(8)[None] + torch.tensor([0, 12, 3, 16])[:, None]  # [N, T]
    frames = torch.zeros(4, 8, 16, 32, 3, dtype=torch.uint8)
    for n in range(4):
        for t in range(8):
            frames[n, t, 6:10, place[n, t] : place[n, t] + 4] = 255
    return frames, place[..., None].float()


def test_an_honest_score_is_accepted_and_a_blind_one_is_not():
    frames, commanded = clips()

    def honest(shown: torch.Tensor, command: torch.Tensor) -> torch.Tensor:
        sharp = (shown > 250).float()[..., 0]  # blurred squares are not seen at all
        column = (sharp.sum(dim=2) * torch.arange(32)).sum(dim=-1) / sharp.sum(dim=(2, 3)).clamp_min(1)
        return action_similarity(column[..., None] - 1.5, command, torch.tensor([1.0]), 0.5)

    generator = stream(0, "acceptance")
    found = acceptance(honest, frames, commanded, generator=generator)
    assert found["scores"]["exact"] == pytest.approx(1)
    assert found["accepted"], found
    blind = acceptance(lambda shown, command: torch.ones(4), frames, commanded, generator=generator)
    assert blind["scores"].keys() == {"exact", "static", "blurred", "shuffled", "reversed", "wrong_action"}
    assert not blind["accepted"]
    with pytest.raises(SettingError, match="at least two videos"):
        acceptance(honest, frames[:1], commanded[:1], generator=generator)


def test_spoilt_pairs_are_what_they_are_called():
    frames, commanded = clips()
    pairs = spoilt(frames, commanded, generator=stream(0, "spoilt"))
    assert torch.equal(pairs["exact"][0], frames)
    assert (pairs["static"][0] == frames[:, :1]).all()
    assert torch.equal(pairs["reversed"][0].flip(1), frames)
    assert torch.equal(pairs["wrong_action"][1][1], commanded[0])
    shuffled = pairs["shuffled"][0]
    assert not torch.equal(shuffled, frames)
    assert torch.equal(shuffled.sum(dim=1, dtype=torch.int64), frames.sum(dim=1, dtype=torch.int64))
    soft = blurred(frames)
    assert soft.shape == frames.shape
    assert soft.dtype == torch.uint8
    assert soft.max() < 200
