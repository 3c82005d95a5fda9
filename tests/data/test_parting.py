"""Success and failure part where a hand-made difference begins, and nowhere without one."""

import numpy as np
import pytest
from scipy.stats import ttest_ind

from worldrl.core.rng import numpy_stream
from worldrl.data.windows.divergence import (
    SPAN,
    course,
    divergence_step,
    first_closing,
    fisher_distance,
    hotelling_p,
    partings,
)


def grasp(make, number, *, holds, slips_after=5, close_at=20, task="lift", steps=50):
    """Close at a frame, the fingers stop at 3 cm on an object or, from ``slips_after`` on, meet."""
    draw = numpy_stream(number, "grasp")
    shift = int(draw.integers(-4, 5))
    episode = make(0, steps, close_at=close_at + shift, task=task)
    opening = np.full(steps + 1, 0.08, np.float32)
    opening[close_at + shift :] = 0.03
    if not holds:
        opening[close_at + shift + slips_after :] = 0.0
    state = episode.state.copy()
    state[:, 6], state[:, 7] = opening / 2 + draw.normal(scale=1e-4, size=steps + 1), -opening / 2
    reward = np.zeros(steps, np.float32)
    reward[-1] = holds
    command = episode.command.copy()
    command[:, 2] = 0.1 + draw.normal(scale=1e-3, size=steps + 1)
    fields = {
        "command": command,
        "state": state,
        "reward": reward,
        "terminated": holds,
        "truncated": not holds,
        "task": task,
    }
    return episode.__class__(**(vars(episode) | fields))


@pytest.mark.parametrize("after", [3, 9])
def test_the_divergence_step_is_where_the_fingers_tell(make_episode, after):
    episodes = [grasp(make_episode, n, holds=n % 2 == 0, slips_after=after) for n in range(12)]
    assert divergence_step(episodes) == after
    assert partings(episodes) == {"lift": after}


def test_nothing_parts_without_a_difference_or_with_one_outcome_only(make_episode):
    alike = [grasp(make_episode, n, holds=n % 2 == 0, slips_after=1000) for n in range(12)]
    assert divergence_step(alike) is None
    assert divergence_step([grasp(make_episode, n, holds=False) for n in range(6)]) is None
    assert divergence_step([make_episode(0, 20)] * 3) is None  # the gripper never closes
    assert partings(alike) == {}


def test_tasks_have_their_own(make_episode):
    episodes = [
        grasp(make_episode, n, holds=n % 2 == 0, slips_after=after, task=task)
        for task, after in (("lift", 4), ("push", 8))
        for n in range(12)
    ]
    assert partings(episodes) == {"lift": 4, "push": 8}


def test_distance_in_closed_form():
    a = np.array([[1.0, 0.0], [3.0, 0.0]])
    b = np.array([[-1.0, 0.0], [-3.0, 0.0]])
    # Pooled variance (2 + 2) / 2 = 2 along the first axis, none along the second: 4² / (2 + noise).
    assert fisher_distance(a, b) == pytest.approx(16 / 2.05)
    assert fisher_distance(a, a) == 0
    assert fisher_distance(a, b) == fisher_distance(b, a)


def test_chance_of_a_distance_is_that_of_students_t():
    # One feature: Hotelling's test is the two-sided t test with the same number of degrees of freedom.
    draw = numpy_stream(0, "t")
    a, b = draw.normal(size=7), draw.normal(size=5) + 1
    pooled = (a.var() * 7 + b.var() * 5) / 10
    assert hotelling_p((a.mean() - b.mean()) ** 2 / pooled, 7, 5, 1) == pytest.approx(ttest_ind(a, b).pvalue)
    assert hotelling_p(9.0, 2, 2, 3) == 1  # too few to tell


def test_a_course_stands_still_beyond_its_ends(make_episode):
    episode = make_episode(0, 10, close_at=4)
    assert first_closing(episode) == 4
    described = course(episode, 4)
    assert described.shape == (2 * SPAN + 1, 3)
    np.testing.assert_array_equal(described[: SPAN - 4], np.tile(described[SPAN - 4], (SPAN - 4, 1)))
    np.testing.assert_array_equal(described[SPAN + 6 :], np.tile(described[SPAN + 6], (SPAN - 5, 1)))
    assert described[SPAN, 2] == 0
