"""Unit under test: ``worldrl.reproductions.pgd.quality``."""

import numpy as np
import pytest
import torch

from worldrl.core.rng import stream
from worldrl.core.transitions import Transitions
from worldrl.reproductions.neubay.pendulum import hang, observe, record, swing
from worldrl.reproductions.pgd.quality import log_ratio, step_error


def test_true_steps_have_no_error_and_false_ones_the_distance() -> None:
    rows, _ = record(2, generator=stream(0, "data"))
    std = rows.obs.std(0)
    assert float(step_error(rows, std).max()) < 1e-8
    wrong = rows.next_obs + torch.tensor([0.0, 0.0, 0.6]) * std
    shifted = Transitions(rows.obs, rows.action, rows.reward, wrong, rows.terminated, rows.truncated)
    torch.testing.assert_close(step_error(shifted, std), torch.full((len(rows),), 0.36 / 3), rtol=1e-3, atol=1e-5)


def test_error_is_measured_from_the_angle_that_an_imagined_state_points_to() -> None:
    angle, speed = hang(5, generator=stream(1, "states"))
    action = torch.zeros(5, 1)
    arrived = observe(*swing(angle, speed, action)[:2])
    off_circle = observe(angle, speed) * torch.tensor([1.3, 1.3, 1.0])
    no = torch.zeros(5, dtype=torch.bool)
    rows = Transitions(off_circle, action, torch.zeros(5), arrived, no, no)
    assert float(step_error(rows, torch.ones(3)).max()) < 1e-8


def test_ratio_is_taken_at_equal_likelihood() -> None:
    found = {
        "ensemble_log_prob": [-1.0, -3.0, -2.0],
        "ensemble_error": [-2.0, -1.0, -1.4],
        "guided_log_prob": [-9.0, -1.5, -2.5, -0.5],  # the first is unguided and does not count
        "guided_error": [5.0, -3.0, -2.0, -2.5],
    }
    expected = np.mean([-1.7 + 3.0, -1.2 + 2.0, -2.0 + 2.5])
    assert log_ratio(found) == pytest.approx(expected)
