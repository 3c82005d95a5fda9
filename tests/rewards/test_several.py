"""Which terms of which rewards count, and how much; their numbers side by side."""

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.types import ImaginedVideos
from worldrl.rewards.mixing import group_deviation, mean_of_terms, mix
from worldrl.rewards.motion.terms import RewardTerms, chosen_terms, weights_of

VIDEOS = ImaginedVideos(torch.zeros(2, 3, 8, 8, 3, dtype=torch.uint8), torch.zeros(2, 2, 1, 1, 1), 0.1, ["a", "b"])


class Fixed:
    def __init__(self, **terms):
        self.names, self.values = tuple(terms), list(terms.values())

    def score(self, videos):
        return torch.tensor(self.values, dtype=torch.float64).expand(videos.rows, -1)


def test_terms_stand_side_by_side_in_the_order_of_the_rewards():
    reward = RewardTerms([Fixed(still=3.0, quick=1.0), Fixed(success=0.5)])
    assert reward.names == ("still", "quick", "success")
    assert reward.score(VIDEOS).tolist() == [[3.0, 1.0, 0.5]] * 2
    with pytest.raises(SettingError, match=r"two of them have a term 'still'; name the terms wanted"):
        RewardTerms([Fixed(still=1.0), Fixed(still=2.0)])


def test_weights_go_to_the_terms_that_are_named():
    found = chosen_terms(["idm.b", "success", "idm.a"], [1, 0.5, 0])
    assert found == {"idm": {"b": 1, "a": 0}, "success": {"": 0.5}}
    assert weights_of(Fixed(b=0.0, a=0.0), found["idm"]) == [1, 0]
    assert weights_of(Fixed(one=0.0, two=0.0), found["success"]) == [0.5, 0.5]
    assert chosen_terms(["idm"], []) == {"idm": {"": 1.0}}
    with pytest.raises(SettingError, match="a reward returned 'c' too"):
        weights_of(Fixed(b=0.0, c=0.0), found["idm"])


@pytest.mark.parametrize(
    ("rewards", "weights", "words"),
    [
        ([], [], "name at least one"),
        (["a", "a"], [], "named twice"),
        (["a", "a.b"], [], "named twice, by itself or with all of 'a'"),
        (["a.b", "a"], [], "named twice"),
        (["a", "b"], [1.0], "2 rewards need as many weights, got 1"),
        (["a"], [float("nan")], "none may be below zero"),
        (["a", "b"], [0.0, 0.0], "one of them above zero"),
    ],
)
def test_what_is_no_mixture_is_refused(rewards, weights, words):
    with pytest.raises(SettingError, match=words):
        chosen_terms(rewards, weights)


def test_both_mixtures_weigh_alike_whatever_the_weights_sum_to():
    rewards = torch.rand(12, 3, generator=stream(0, "rewards"), dtype=torch.float64)
    group = torch.arange(3).repeat_interleave(4)
    weighed = mean_of_terms(rewards, group, weights=[1, 3, 0])
    torch.testing.assert_close(weighed, rewards[:, 0] / 4 + 3 * rewards[:, 1] / 4)
    torch.testing.assert_close(mean_of_terms(rewards, group), rewards.mean(dim=1))
    torch.testing.assert_close(
        mix(rewards, group, weights=[1, 3, 0]), mix(rewards, group, weights=[2, 6, 0]), atol=1e-3, rtol=0
    )


def test_the_spread_of_a_term_is_its_deviation_among_group_mates():
    rewards = torch.tensor([[1.0, 5.0], [3.0, 5.0], [7.0, 0.0]])
    found = group_deviation(rewards, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(found, torch.tensor([[2**0.5, 0.0], [2**0.5, 0.0], [0.0, 0.0]]))
