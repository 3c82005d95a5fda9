"""EVA's reward with the published constants, on trajectories whose velocity, acceleration and jerk are known."""

from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.rewards.motion import decoded
from worldrl.rewards.motion.basis import measure_basis
from worldrl.rewards.motion.limits import JointLimits
from worldrl.rewards.motion.published import fits_published, published_executability
from worldrl.rewards.motion.readout import Column

DT, FRAMES = 0.1, 12
NAMES = [f"{arm}_{part}" for arm in ("left", "right") for part in (*(f"joint{k}" for k in range(1, 7)), "gripper")]
ARMS = [Column("command", k, name) for k, name in enumerate(NAMES)]
WEIGHTS = 12 * 1.0 + 2 * 0.2
"""Sum of the weights, whose mean is scaled to 1: a joint counts 1 / 12.4 of the whole, a gripper 0.2 / 12.4."""
ANY = JointLimits(14 * (1.0,), 14 * (1.0,), 14 * (-1.0,), 14 * (1.0,), 14 * (1.0,))


def moving(place, path):
    """All coordinates stand still but one, float64 ``[1, T, 14]``."""
    q = torch.zeros(1, FRAMES, 14, dtype=torch.float64)
    q[0, :, place] = path(DT * torch.arange(FRAMES, dtype=torch.float64))
    return q


def expected(share, *, jerk=0.0, acceleration=0.0, velocity_bound=0.0, acceleration_bound=0.0):
    p = share * (0.5 * jerk + 0.25 * acceleration + 2 * velocity_bound + acceleration_bound)
    return 10 * (1 + p / 2000) ** -0.5


@pytest.mark.parametrize(
    ("place", "path", "told"),
    [
        # 3 rad/s at the first joint, whose bound is 0.85 x 3.1416 = 2.67036 rad/s; nothing accelerates.
        (0, lambda t: 3 * t, {"velocity_bound": (3 - 2.67036) ** 2}),
        (0, lambda t: 2.6 * t, {}),
        # The sixth may turn at 0.85 x 3.9270.
        (12, lambda t: 3.3 * t, {}),
        # 2 rad/s²: within Huber's knee (half of 5), a²/2.
        (1, lambda t: t**2, {"acceleration": 2.0}),
        # 6 rad/s²: beyond the knee, 2.5 (6 - 1.25), and 1 above the bound; the speed stays below 0.85 x 3.4034 in 12 frames of 0.1 s
        # but for those after 0.48 s, which the velocity bound counts.
        (1, lambda t: 3 * t**2, {"acceleration": 2.5 * (6 - 1.25), "acceleration_bound": 1.0, "velocity_bound": "speeds"}),
        # q = t³/3: jerk 2 rad/s³, below the knee 2.5 / 0.1; a_k = 2 t_(k+1).
        (2, lambda t: t**3 / 3, {"jerk": 2.0, "acceleration": "cubic"}),
    ],
)  # fmt: skip
def test_known_motion_has_the_reward_worked_out_by_hand(place, path, told):
    told, t = dict(told), DT * torch.arange(FRAMES, dtype=torch.float64)
    if told.get("velocity_bound") == "speeds":
        speed = path(t).diff() / DT
        told["velocity_bound"] = float((speed - 0.85 * 3.4034).clamp_min(0).square().mean())
    if told.get("acceleration") == "cubic":
        told["acceleration"] = float((2 * t[1:-1]).square().div(2).mean())
    found = published_executability(moving(place, path), DT, ANY)
    assert found.item() == pytest.approx(expected(1 / WEIGHTS, **told), abs=1e-6)


def test_a_gripper_counts_a_fifth_and_has_bounds_of_its_own():
    """2.5 openings/s are 0.5 above the bound of a gripper."""
    found = published_executability(moving(6, lambda t: 2.5 * t), DT, ANY)
    assert found.item() == pytest.approx(expected(0.2 / WEIGHTS, velocity_bound=0.25), abs=1e-6)


def reader(columns):
    real = torch.linspace(0, 0.5, 8)[None, :, None].expand(3, 8, len(columns))
    limits = JointLimits.measured(list(real), DT)
    return SimpleNamespace(columns=columns, basis=measure_basis(real, 0 * real, DT, limits))


def test_it_stands_beside_the_fitted_one_and_is_asked_for_by_name(monkeypatch):
    monkeypatch.setattr(decoded.InverseDynamics, "load", lambda folder, device: reader(ARMS))
    both = ["executability", "published_executability"]
    reward = decoded.idm_reward("folder", both, torch.device("cpu"))
    q = moving(0, lambda t: 3 * t).float()
    fitted, published = (term(q, DT, reward.basis.limits) for term in reward.terms.values())
    assert published.item() == pytest.approx(expected(1 / WEIGHTS, velocity_bound=(3 - 2.67036) ** 2), abs=1e-4)
    assert fitted < published - 1  # a P0 of the noise floor is far below 2000
    every = decoded.idm_reward("folder", [], torch.device("cpu"))
    assert "published_executability" not in every.names


@pytest.mark.parametrize(
    "columns",
    [
        [Column("state", k, name) for k, name in enumerate("xyz")],
        ARMS[:7],
        [*ARMS[1:], ARMS[0]],
        [Column("action", k, name) for k, name in enumerate(NAMES)],
    ],
)
def test_robots_that_the_constants_are_not_of_are_refused(monkeypatch, columns):
    assert not fits_published(columns)
    assert fits_published(ARMS)
    monkeypatch.setattr(decoded.InverseDynamics, "load", lambda folder, device: reader(columns))
    with pytest.raises(
        SettingError, match=r"two arms of six joints and a gripper each, and this inverse dynamics reads"
    ):
        decoded.idm_reward("folder", ["published_executability"], torch.device("cpu"))
