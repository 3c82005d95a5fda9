"""Losses of ratios by their closed forms and gradients, the proximal copy that some need, and steps that are undone."""

from math import log

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.methods.rl.control import Verified
from worldrl.methods.rl.interfaces import Evaluated
from worldrl.methods.rl.losses import clipped
from worldrl.methods.rl.proximal import Follower
from worldrl.methods.rl.ratios import (
    balanced_clip,
    decoupled,
    kept_gradient,
    leftover,
    mismatch_mask,
    prefix_minimum,
    with_demonstrations,
)


def evaluated(ratio, advantage, *, proximal=None, before=0.0):
    """Decisions ``[M, L, 1]`` with these ratios to what acted; a proximal policy with these to the same."""
    now = torch.tensor(ratio, dtype=torch.float64).log()[:, :, None] + before
    near = None if proximal is None else torch.tensor(proximal, dtype=torch.float64).log()[:, :, None] + before
    old, rows = torch.full_like(now, before), len(ratio)
    gain = torch.tensor(advantage, dtype=torch.float64)
    return Evaluated(now.requires_grad_(), old, gain, torch.ones(rows, dtype=torch.float64), proximal=near)


def gradient(loss, found, **over):
    loss(found, **over)[0].backward()
    return found.now.grad[:, :, 0]


def close(found, wanted):
    torch.testing.assert_close(found.double(), torch.tensor(wanted, dtype=torch.float64), atol=1e-6, rtol=0)


def test_minpro_weighs_by_the_least_ratio_before():
    """Ratios 0.9, 1.1, 1.05: prefixes 1, 0.9, 0.9; the last decision's first token is above the clip."""
    found = evaluated([[0.9, 1.1, 1.05], [1.5, 1.0, 1.0]], [2.0, -1.0])
    loss = prefix_minimum(found)[0]
    wanted = -(2 * (0.9 + 0.9 * 1.1 + 0.9 * 1.05) / 3 - (1.5 + 1.0 + 1.0) / 3) / 2
    assert loss.item() == pytest.approx(wanted)
    close(gradient(prefix_minimum, found), [[-0.3, -0.33, -0.315], [0.25, 1 / 6, 1 / 6]])


def test_bapo_opens_the_clip_until_good_samples_have_their_share():
    """One good token against three bad ones: 0.7 and 0.86 drop out as the lower end goes up, 0.95 stays."""
    found = evaluated([[1.0], [0.7], [0.86], [0.95]], [1.0, -1.0, -1.0, -1.0])
    logs = balanced_clip(found)[1]
    assert float(logs["clip_low"]) == pytest.approx(0.9)
    assert float(logs["clip_high"]) == pytest.approx(1.2)  # 1 against 0.95 is one half already
    assert gradient(balanced_clip, found).flatten().tolist() == pytest.approx([-0.25, 0, 0, 0.2375])


def test_bapo_stops_where_the_share_is_reached():
    found = evaluated([[1.1], [0.65], [1.0]], [1.0, -1.0, 0.0])
    logs = balanced_clip(found)[1]
    assert (float(logs["clip_low"]), float(logs["clip_high"])) == pytest.approx((0.6, 1.2))
    rare = evaluated([[1.5], [0.8], [0.95]], [1.0, -1.0, -1.0])
    logs = balanced_clip(rare)[1]
    assert float(logs["clip_low"]) == pytest.approx(0.9)
    assert 1.5 <= float(logs["clip_high"]) < 1.56


def test_a_lol_imitates_what_was_better_by_as_much():
    """Products of ratios 1.1, 4 (clipped to 1.9) and any where the advantage is negative."""
    found = evaluated([[1.1, 1.0], [2.0, 2.0], [0.5, 0.5]], [2.0, 1.0, -3.0])
    close(gradient(leftover, found), [[-2 * 1.1 / 6] * 2, [-1.9 / 6] * 2, [0, 0]])


def test_aepo_keeps_the_gradient_of_clipped_good_tokens():
    found = evaluated([[2.0], [1.1], [2.0], [0.5]], [1.0, 1.0, -1.0, -1.0])
    grad = gradient(kept_gradient, found)
    close(grad.flatten(), [-1.28 / 4, -1.1 / 4, 2.0 / 4, 0.0])
    assert kept_gradient(found)[0].item() == pytest.approx(clipped(found)[0].item())
    assert gradient(clipped, evaluated([[2.0], [1.1], [2.0], [0.5]], [1.0, 1.0, -1.0, -1.0]))[0, 0] == 0


def test_a_decoupled_loss_clips_around_the_proximal_policy():
    """Ratios to the proximal 1.0, 1.5 (clipped) and 0.9; its own to what acted 2, 1 and 200 (at most 100)."""
    found = evaluated([[2.0], [1.5], [180.0]], [1.0, 1.0, 1.0], proximal=[[2.0], [1.0], [200.0]], before=-6.0)
    loss = decoupled(found)[0]
    assert loss.item() == pytest.approx(-(2 * 1.0 + 1.28 + 100 * 0.9) / 3)
    close(gradient(decoupled, found).flatten(), [-2 / 3, 0, -90 / 3])
    same = evaluated([[1.1], [0.7]], [1.0, -1.0], proximal=[[1.0], [1.0]])
    assert decoupled(same)[0].item() == pytest.approx(clipped(same)[0].item())
    with pytest.raises(SettingError, match="decoupled needs an average of the policy's weights"):
        decoupled(evaluated([[1.0]], [1.0]))


def test_icepop_masks_what_training_and_rollout_disagree_on():
    found = evaluated([[1.0], [2.0], [6.0], [0.4]], [1.0] * 4, proximal=[[1.0], [2.0], [6.0], [0.4]])
    loss, logs = mismatch_mask(found)
    assert loss.item() == pytest.approx(-(1 + 2) / 4)
    assert float(logs["masked"]) == 0.5
    assert float(logs["mismatch"]) == pytest.approx((log(2) + log(6) - log(0.4)) / 4)
    close(gradient(mismatch_mask, found).flatten(), [-1 / 4, -2 / 4, 0, 0])


def test_rl_plus_learns_most_from_demonstrations_that_it_would_hardly_show():
    """Own: ratio 1.1, A = 2. Shown: π 0.25 and 0.81, at the beginning 0.25 and 0.5: 2 π / (π_p + (π_p + 1) / 2)."""
    now = torch.tensor([[0.55], [0.25], [0.81]], dtype=torch.float64).log()[:, :, None].requires_grad_()
    old = torch.tensor([[0.5], [0.25], [0.5]], dtype=torch.float64).log()[:, :, None]
    one, external = torch.ones(3, dtype=torch.float64), torch.tensor([False, True, True])
    found = Evaluated(now, old, torch.tensor([2.0, 1, 1]).double(), one, proximal=old, external=external)
    shown = [0.5 / 0.875 * 0.75**0.5, 1.62 / 1.25 * 0.19**0.5]
    loss, logs = with_demonstrations(found)
    assert loss.item() == pytest.approx(-(2.2 + sum(shown)) / 3)
    close(gradient(with_demonstrations, found).flatten(), [-2.2 / 3, -shown[0] / 3, -shown[1] / 3])
    assert float(logs["demonstrated"]) == pytest.approx(0.53)
    with pytest.raises(SettingError, match="needs demonstrations in each gradient step"):
        with_demonstrations(evaluated([[1.0]], [1.0]))


# -- copies of the weights -------------------------------------------------------------------------------------------------


class Weight(torch.nn.Module):
    """One number that stands for a policy."""

    def __init__(self, value):
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor(value))

    def likelihood(self, obs, token, *, temperature):
        return self.value


def look(follower):
    return follower.likelihood(None, None, temperature=1.0).item()


def test_an_average_looks_back_with_the_paper_s_correction():
    policy = Weight(0.0)
    follower = Follower(policy, 0.5)
    seen = []
    for value in (1.0, 3.0, 5.0):
        policy.value.data.fill_(value)
        seen.append(look(follower))
    # weights 1; 1/2, 1; 1/4, 1/2, 1
    assert seen == pytest.approx([1.0, (0.5 * 1 + 3) / 1.5, (0.25 * 1 + 0.5 * 3 + 5) / 1.75])
    again = Follower(policy, 0.5)
    again.load_state_dict(follower.state_dict())
    assert look(again) == look(follower)
    assert policy.value.item() == 5


def test_the_weights_of_the_beginning_stay_until_the_iteration_ends():
    policy = Weight(1.0)
    follower = Follower(policy)
    policy.value.data.fill_(2.0)
    assert look(follower) == 1
    follower.renew(0)
    assert look(follower) == 2
    assert Follower(policy, 0.9).renew(0) is None


def test_steps_that_lose_more_paired_rollouts_than_they_win_are_undone():
    policy, wins = Weight(1.0), iter([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 0, 1]])
    followed = []
    control = Verified(policy, lambda: torch.tensor(next(wins)) > 0, followed.append)
    assert control.after(0) == {}  # no step was taken
    seen = []
    for value in (2.0, 3.0, 4.0):
        assert control.before({}) == 1
        policy.value.data.fill_(value)
        logs = control.after(0)
        seen.append((policy.value.item(), float(logs["paired_gain"]), float(logs["undone"])))
    assert seen == [(2.0, 0.25, 0.0), (2.0, -0.25, 1.0), (4.0, 0.0, 0.0)]
    assert len(followed) == 3
    again = Verified(Weight(0.0), lambda: torch.tensor([False] * 4))
    again.load_state_dict(control.state_dict())
    again.after(1)
    assert again.policy.value.item() == 4
