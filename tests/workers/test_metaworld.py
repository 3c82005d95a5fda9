"""Meta-World's adapter at its two control rates, with a stand-in for one of its environments."""

import numpy as np
import pytest

from worldrl.rollout.suites.names import ADAPTERS
from worldrl.workers.metaworld.adapter import MetaWorldMt10
from worldrl.workers.metaworld.held import MetaWorldMt10At20Hz


class Counting:
    """Notes its actions; the task is fulfilled at the steps ``successes`` alone."""

    def __init__(self, successes):
        self.actions, self.successes = [], successes

    def step(self, action):
        self.actions.append(np.array(action))
        return np.zeros(39), 0.0, False, False, {"success": float(len(self.actions) in self.successes)}


def adapter(kind, successes=()):
    made = kind.__new__(kind)
    made.env = Counting(successes)
    return made


@pytest.mark.parametrize(("kind", "steps"), [(MetaWorldMt10, 1), (MetaWorldMt10At20Hz, 4)])
def test_an_action_is_held_for_the_steps_of_its_rate(kind, steps):
    made = adapter(kind)
    made.step(np.array([0.1, -0.2, 0.3, 0, 0, 0, -1.0]))
    np.testing.assert_array_equal(made.env.actions, [[0.1, -0.2, 0.3, -1.0]] * steps)
    assert not made.success()


def test_success_at_any_held_step_counts_until_the_next_action():
    made = adapter(MetaWorldMt10At20Hz, successes={2})
    made.step(np.zeros(7))
    assert made.success()
    made.step(np.zeros(7))
    assert not made.success()


def test_both_rates_move_the_hand_alike_in_a_second():
    fast, slow = MetaWorldMt10.robot, MetaWorldMt10At20Hz.robot
    assert fast["position_scale"] * fast["control_hz"] == pytest.approx(slow["position_scale"] * slow["control_hz"])
    assert {name for name, (environment, _) in ADAPTERS.items() if environment == "metaworld"} == {
        MetaWorldMt10.name,
        MetaWorldMt10At20Hz.name,
    }
    assert slow["workspace_low"] == fast["workspace_low"]
