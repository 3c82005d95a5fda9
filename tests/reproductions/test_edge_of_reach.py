"""Units under test: ``worldrl.reproductions.edge_of_reach.mujoco`` and ``edge_parts``."""

import torch

from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.ravl import Ravl
from worldrl.methods.offline.reach import nearest
from worldrl.reproductions.edge_of_reach.mujoco import SETTINGS, late_returns, make_agent
from worldrl.reproductions.edge_of_reach.parts import padded


def test_distance_is_in_deviations_of_what_was_passed() -> None:
    earlier = torch.tensor([[0.0, -10.0], [2.0, 10.0], [4.0, 0.0]])  # deviations 2 and 10
    final = torch.tensor([[4.0, 20.0], [4.0, 0.0]])
    torch.testing.assert_close(nearest(final, earlier), torch.tensor([2**0.5, 0.0]), atol=2e-3, rtol=0)


def test_agents_differ_in_their_critics_alone() -> None:
    settings, facts = SETTINGS["tiny"], Facts(torch.zeros(3), torch.ones(3), 2)
    base, ravl = (make_agent(settings, method, facts) for method in ("base", "ravl"))
    assert isinstance(ravl, Ravl)
    assert not isinstance(base, Ravl)
    assert (base.config.critics, ravl.config.critics, ravl.config.diversity) == (
        2,
        settings.critics,
        settings.diversity,
    )
    for name in ("hidden", "discount", "polyak", "actor_rate", "critic_rate", "entropy_backup"):
        assert getattr(base.config, name) == getattr(ravl.config, name)


def test_training_that_left_the_numbers_keeps_its_last_values() -> None:
    found = padded([{"step": 1, "return": 3.0}, {"step": 2, "return": 5.0}], 4)
    assert found == {"return": [3.0, 5.0, 5.0, 5.0]}


def test_a_seed_counts_by_the_last_half_of_its_evaluations() -> None:
    found = [{"return": [900.0, 900.0, 1.0, 3.0]}, {"return": [7.0]}, {"return": [50.0, 4.0, 6.0]}]
    assert late_returns(found).tolist() == [2.0, 7.0, 5.0]
