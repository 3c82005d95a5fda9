"""The smooth penalty on broken limits, on trajectories whose excess is known."""

from dataclasses import replace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.rewards.mixing import group_normalised
from worldrl.rewards.motion.broken_limits import clear_of_limits, within_limits
from worldrl.rewards.motion.executability import violation_rate
from worldrl.rewards.motion.limits import JointLimits

DT = 0.1
LIMITS = JointLimits(
    velocity=(1.0, 2.0), acceleration=(20.0, 40.0), low=(-0.5, -3.0), high=(0.5, 3.0), weight=(1.0, 1.0)
)


def ramp(speed: float, frames: int = 9) -> torch.Tensor:
    """The first coordinate moves from -speed/2 at this speed (units/s) and the second is still, float64 ``[1, T, 2]``."""
    way = speed * DT * (torch.arange(frames, dtype=torch.float64) - frames // 2)
    return torch.stack([way, torch.zeros_like(way)], dim=-1)[None]


def test_the_excess_is_a_share_of_its_bound():
    """1.25 of the velocity bound at every step of one of two coordinates; half a step's way outside at the ends."""
    (found,) = within_limits(ramp(1.25), DT, LIMITS).tolist()
    outside = (ramp(1.25)[0, :, 0].abs() - 0.5).clamp_min(0) / (1.0 * DT)
    assert found == pytest.approx(-(8 * 0.25**2 + float(outside.square().sum())))
    jump = torch.zeros(1, 5, 2, dtype=torch.float64)
    jump[0, 2:, 1] = 0.9  # 9/s of 2/s, once in 4 steps; 90/s² of 40/s², twice in 3
    assert within_limits(jump, DT, LIMITS).item() == pytest.approx(-(3.5**2 + 2 * 1.25**2))


def test_it_is_zero_exactly_where_no_bound_is_broken_and_falls_with_the_excess():
    speeds = torch.tensor([0.0, 0.5, 0.99, 1.01, 1.1, 1.5, 3.0])
    q = torch.cat([ramp(float(speed)) for speed in speeds])
    value, broken = within_limits(q, DT, LIMITS), violation_rate(q, DT, LIMITS)
    assert (value == 0).tolist() == (broken == 0).tolist() == [True, True, True, False, False, False, False]
    assert (value[3:].diff() < 0).all()
    assert within_limits(q[:, :3], DT, LIMITS).tolist() == [0.0] * len(q)


def test_one_broken_bound_stands_out_in_a_group():
    """A single step at 1.1 of its bound in one of eight plans: GDPO's ε does not swallow it."""
    q = torch.zeros(8, 13, 2, dtype=torch.float64)
    q[0, 6:, 1] = 0.2 * 1.1  # 2.2/s of 2/s, and within the acceleration's bound
    terms = within_limits(q, DT, LIMITS)[:, None]
    normal = group_normalised(terms, torch.zeros(8, dtype=torch.int64))
    assert normal[0, 0] == pytest.approx(-7 / 8 / (1 / 8) ** 0.5, rel=0.05)


def test_climbing_it_mends_the_limits_and_leaves_the_rest_alone():
    """Its gradient slows what is too fast, and ignores a video that keeps its bounds."""
    q = torch.cat([ramp(1.5), ramp(0.8)]).requires_grad_()
    before = violation_rate(q, DT, LIMITS)
    for _ in range(200):
        (slope,) = torch.autograd.grad(within_limits(q, DT, LIMITS).sum(), q)
        assert not slope[1].any()
        q = (q + 0.0005 * slope).detach().requires_grad_()
    assert within_limits(q, DT, LIMITS)[0] > 0.05 * within_limits(ramp(1.5), DT, LIMITS)[0]
    assert violation_rate(q, DT, LIMITS)[0] <= before[0]
    assert (q[0, 1:, 0] > q[0, :-1, 0]).all()  # slower, not still


def test_a_margin_begins_inside_the_bounds():
    """At 0.9 of the velocity bound in every one of eight steps, 0.1 beyond the hinge of a margin of a fifth."""
    q = 0.1 * ramp(0.9)  # a tenth of the way: positions keep away from their bounds
    wide = JointLimits(
        velocity=(0.1, 0.2), acceleration=(2.0, 4.0), low=(-0.5, -3.0), high=(0.5, 3.0), weight=(1.0, 1.0)
    )
    assert violation_rate(q, DT, wide).item() == within_limits(q, DT, wide).item() == 0
    assert clear_of_limits(q, DT, wide, margin=0.2).item() == pytest.approx(-8 * 0.1**2)
    assert clear_of_limits(q, DT, wide, margin=0.05).item() == 0
    jump = torch.zeros(1, 5, 2, dtype=torch.float64)
    jump[0, 2:, 1] = 0.18  # 1.8/s of 2/s, once; 18/s² of 40/s², twice
    assert clear_of_limits(jump, DT, LIMITS, margin=0.6).item() == pytest.approx(-(0.5**2 + 2 * 0.05**2))
    still = torch.full(
        (1, 5, 2), 0.45, dtype=torch.float64
    )  # 0.05 inside a range of ±0.5, of whose half a fifth is 0.1
    assert clear_of_limits(still, DT, LIMITS, margin=0.2).item() == pytest.approx(-5 * (0.05 / (1.0 * DT)) ** 2)


def test_without_a_margin_nothing_changes_and_a_missing_bound_has_none():
    q = torch.cat([ramp(speed) for speed in (0.5, 1.1, 3.0)])
    assert torch.equal(clear_of_limits(q, DT, LIMITS, margin=0.0), within_limits(q, DT, LIMITS))
    assert LIMITS.drawn_in(0.0) == LIMITS
    free = replace(LIMITS, low=(float("-inf"), -3.0), high=(0.5, float("inf")))
    assert free.drawn_in(0.5) == free
    assert LIMITS.drawn_in(0.5).high == (0.25, 1.5)
    assert LIMITS.drawn_in(0.5).low == (-0.25, -1.5)
    assert clear_of_limits(q, DT, free, margin=0.5).isfinite().all()
    for margin in (-0.1, 1.0):
        with pytest.raises(SettingError, match=r"margin must be in \[0, 1\)"):
            clear_of_limits(q, DT, LIMITS, margin=margin)


def test_a_group_that_breaks_nothing_has_something_to_learn():
    """Eight plans within their bounds, at 0.6 to 0.95 of a velocity: without a margin all are worth the same."""
    q = torch.cat([0.5 * ramp(float(speed)) for speed in torch.linspace(0.6, 0.95, 8)])
    limits = replace(LIMITS, velocity=(0.5, 2.0), low=(-3.0, -3.0), high=(3.0, 3.0))
    assert not violation_rate(q, DT, limits).any()
    group = torch.zeros(8, dtype=torch.int64)
    assert not group_normalised(within_limits(q, DT, limits)[:, None], group).any()
    normal = group_normalised(clear_of_limits(q, DT, limits, margin=1 / 3)[:, None], group)[:, 0]
    assert normal[0] == normal[1] > 0  # up to 0.65 nothing counts
    assert (normal[1:].diff() < 0).all()
