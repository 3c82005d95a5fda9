"""Step credit and step filters by their closed forms: two rollouts of one start, three chunks, one success."""

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.methods.rl.advantages import group_std
from worldrl.methods.rl.credit import anchored, anchors, process_advantage, redistributed, shared_steps, verified_steps
from worldrl.methods.rl.imagination import held
from worldrl.methods.rl.interfaces import Trace, progress
from worldrl.methods.rl.selection import advancing, two_levels

VALUE, GROUP = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
VALID = torch.tensor([[True, True], [True, True], [False, True]])
SHOWN = torch.tensor([[0.2, 0.4], [0.9, 0.1], [0.9, 0.1]])
"""The first rollout succeeds with its second chunk; the second one nears success, then leaves it."""


def seen(**over):
    return Trace(0, GROUP, VALID, **({"wins": VALUE > 0, "probability": SHOWN} | over))


def close(found, wanted):
    torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=found.dtype), atol=1e-3, rtol=0)


def test_what_is_shown_last_holds_after_the_end():
    shown = torch.tensor([[0.2, 0.4], [0.9, 0.1], [0.0, 0.3]])
    assert held(shown, VALID).tolist() == torch.tensor([[0.2, 0.4], [0.9, 0.1], [0.9, 0.3]]).tolist()
    close(progress(seen(), "this test"), [[0.2, 0.4], [0.7, -0.3], [0, 0]])


def test_pav_adds_the_progress_of_each_step():
    plain = group_std(VALUE, seen())
    close(process_advantage(VALUE, seen()), plain + torch.tensor([[0.2, 0.4], [0.7, -0.3], [0, 0]]))
    with pytest.raises(SettingError, match="needs the success probability after each decision"):
        process_advantage(VALUE, seen(probability=None))


def test_spa_rl_shares_add_up_to_the_outcome():
    """Rollout 1: gains 0.2, 0.7 and (1 - 0.9) / 2 each: 0.25, 0.75; rollout 2: 0.4, -0.3, 0 and -0.1 / 3 each.

    To go: 1, 0.75 and 0, -0.4 + 1 / 30, -1 / 30; centred 0.5, -0.5; (0.75 + 0.36667) / 2; 0 (alone).
    """
    later = (0.75 + 0.4 - 1 / 30) / 2
    scale = ((2 * 0.25 + 2 * later**2) / 5) ** 0.5
    close(redistributed(VALUE, seen()), [[0.5 / scale, -0.5 / scale], [later / scale, -later / scale], [0, 0]])


def test_vsrm_gives_idle_steps_a_share_of_the_next_gain():
    shown = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.5, 0.0]])
    rewards = torch.tensor([[0.45, 0.0], [0.5, 0.0], [0.0, 0.0]])  # γ 0.5 = 0.45 for the idle first chunk
    after = VALUE + rewards.flip(0).cumsum(0).flip(0)
    half = (after[:2, 0] - after[:2, 1]) / 2
    scale = ((2 * half.square().sum()) / 5).sqrt()
    close(verified_steps(VALUE, seen(probability=shown))[:2, 0], half / scale)
    lost = torch.tensor([[0.0, 0.5], [0.0, 0.1], [0.0, 0.1]])  # a loss counts against, with its sign
    assert verified_steps(torch.zeros(2), seen(probability=lost))[1].tolist() == pytest.approx(
        [0.2 / scale_of(lost), -0.2 / scale_of(lost)], abs=1e-2
    )


def scale_of(shown):
    """Rewards of the second rollout: 0.5, -0.4, 0; to go 0.1, -0.4, 0 against nothing; centred by halves."""
    assert shown[0, 1] == 0.5
    return ((2 * 0.05**2 + 2 * 0.2**2) / 5) ** 0.5


# -- shared states ---------------------------------------------------------------------------------------------------

GREY = {"start": 10, "middle": 100, "elsewhere": 180, "end": 250}


def images(*rows):
    looks = torch.tensor([[GREY[look] for look in row] for row in rows], dtype=torch.uint8)
    return lambda: looks.T[:, :, None, None, None].expand(-1, -1, 8, 8, 3)


def test_states_are_alike_where_they_look_alike_and_begin_alike():
    shown = images(["start", "middle", "end", "end"], ["start", "elsewhere", "middle", "end"])
    state = anchors(seen(images=shown))
    assert state.shape == (4, 2)
    assert state[0, 0] == state[0, 1]
    assert state[1, 0] == state[2, 1] != state[1, 1]
    apart = anchors(Trace(0, torch.tensor([0, 1]), VALID, images=shown))
    assert apart[0, 0] != apart[0, 1]


def test_gigpo_compares_what_follows_the_same_state():
    """Both begin alike: 0.95 against 0; the middle is left at chunk 1 of 2 and at chunk 2 of 3: 1 against 0."""
    shown = images(["start", "middle", "end", "end"], ["start", "elsewhere", "middle", "end"])
    found = anchored(VALUE, seen(images=shown))
    close(found[VALID], [0.5 + 0.475, -0.5 - 0.475, 0.5 + 0.5, -0.5, -0.5 - 0.5])


def test_salt_takes_credit_from_steps_that_all_took():
    shown = images(["start", "middle", "end", "end"], ["start", "middle", "elsewhere", "end"])
    found, plain = shared_steps(VALUE, seen(images=shown)), group_std(VALUE, seen())
    close(found[0], [0, 0])  # start → middle, by both
    close(found[VALID][2:], plain[VALID][2:])


# -- which steps are kept ----------------------------------------------------------------------------------------------


def test_only_steps_that_bring_success_no_farther_are_imitated():
    shown = torch.tensor([[0.3, 0.4], [0.2, 0.5], [0.2, 0.9]])
    advantage = torch.tensor([[0.5, -0.5]] * 3)
    kept = advancing(advantage, VALUE, seen(probability=shown), torch.Generator())
    assert kept[:2].tolist() == [[0.5, 0], [0, 0]]


def test_d3s_keeps_varied_rollouts_and_the_chunks_that_matter():
    """Of four rollouts in two groups the best and the worst; of their six chunks the four with the largest |A| H."""
    trace = Trace(
        0,
        torch.tensor([0, 0, 1, 1]),
        torch.ones(3, 4, dtype=torch.bool),
        surprise=torch.tensor([[0.9, 9, 9, 1], [2.0, 9, 9, 2], [3.0, 9, 9, 3]]),
    )
    advantage = torch.tensor([[2.0, 0.1, -0.1, -1.0]] * 3)
    kept = two_levels(advantage, torch.zeros(4), trace, torch.Generator())
    assert kept.tolist() == [[0, 0, 0, 0], [1, 0, 0, 1], [1, 0, 0, 1]]
