"""Units under test: ``evaluation/conventions.py``, ``convention_fit.py`` and ``tool_conventions.py``, on a point that obeys actions."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from worldrl.evaluation.conventions.conventions import (
    action_alternatives,
    from_euler,
    image_alternatives,
    other_sign,
    round_factor,
    shifted,
    state_alternatives,
)
from worldrl.evaluation.conventions.fit import fits, match, search, verdict
from worldrl.evaluation.conventions.tool import ToolConventions, ToolFit

ROBOT = ToolConventions(rotation_scale=0.5)
DRAW = np.random.default_rng(0)
TRUE = [DRAW.uniform(-0.4, 0.4, (20, 7)).astype(np.float32) for _ in range(3)]


def walk(action):
    """State ``[T+1, 7]`` of a point that turns and opens as commanded."""
    state = [np.zeros(7)]
    for a in action.astype(float):
        turned = Rotation.from_rotvec(0.5 * a[3:6]) * Rotation.from_rotvec(state[-1][3:6])
        state.append(np.array([*(state[-1][:3] + 0.05 * a[:3]), *turned.as_rotvec(), a[6]]))
    return np.stack(state)


def play(actions):
    mine, theirs = (np.concatenate([walk(a) for a in each]) for each in (actions, TRUE))
    position, turn, opening = (
        np.sqrt(np.mean((mine[:, part] - theirs[:, part]) ** 2)) for part in (slice(0, 3), slice(3, 6), slice(6, 7))
    )
    length = [sum(np.abs(np.diff(walk(a)[:, :3], axis=0)).sum() for a in each) for each in (TRUE, actions)]
    angle = [sum(np.abs(a[:, 3:6]).sum() for a in each) for each in (TRUE, actions)]
    solved = 3 if position + turn + opening < 1e-4 else 0
    return ToolFit(solved, 3, position, turn, opening, length[0] / length[1], angle[0] / angle[1])


@pytest.mark.parametrize(
    ("family", "name", "damage"),
    [
        ("gripper", "reversed: +1 opens", lambda a: a * [1, 1, 1, 1, 1, 1, -1]),
        ("gripper", "0 opens, 1 closes", lambda a: np.column_stack([a[:, :6], (a[:, 6] + 1) / 2])),
        ("rotation", "the other way round", lambda a: a * [1, 1, 1, -1, -1, -1, 1]),
        ("rotation", "in the gripper's frame", lambda a: a * [1, 1, 1, 1, -1, -1, 1]),
        ("rotation", "in the order z, y, x", lambda a: a[:, [0, 1, 2, 5, 4, 3, 6]]),
        ("axes", "x and y reversed", lambda a: a * [-1, -1, 1, 1, 1, 1, 1]),
        ("axes", "x and y exchanged", lambda a: a[:, [1, 0, 2, 3, 4, 5, 6]]),
        ("position scale", "too small by 4", lambda a: a * [0.25, 0.25, 0.25, 1, 1, 1, 1]),
        ("rotation scale", "too large by 2", lambda a: a * [1, 1, 1, 2, 2, 2, 1]),
    ],
)
def test_each_damage_is_undone_by_its_alternative(family, name, damage):
    found = search([damage(action).astype(np.float32) for action in TRUE], play, ROBOT)
    assert [(a.family, a.name) for a in found.chosen] == [(family, name)]
    assert found.best.good
    assert not found.as_recorded.good
    assert found.trials[0].fit == found.best
    assert found.chosen[0].line in verdict(found, [])


def test_euler_angles_are_distinguished_from_rotation_vectors():
    euler = [a.copy() for a in TRUE]
    for a in euler:
        a[:, 3:6] = Rotation.from_rotvec(0.5 * a[:, 3:6]).as_euler("xyz") / 0.5
    found = search(euler, play, ROBOT)
    assert ("rotation", "Euler angles") in [(a.family, a.name) for a in found.chosen]
    np.testing.assert_allclose(from_euler(0.5)(euler[0][:, 3:6]), TRUE[0][:, 3:6], atol=1e-6)


def test_shifting_keeps_the_length_and_the_ends_stand_still():
    action = np.arange(1, 36, dtype=np.float32).reshape(5, 7)
    for steps in (1, 2, -1, -2):
        moved = shifted(action, steps)
        assert moved.shape == action.shape
        inside = slice(0, 5 - steps) if steps > 0 else slice(-steps, 5)
        np.testing.assert_array_equal(moved[inside], action[max(steps, 0) : 5 + min(steps, 0)])
        end = moved[-1] if steps > 0 else moved[0]
        np.testing.assert_array_equal(end[:6], np.zeros(6))
        assert end[6] == action[-1 if steps > 0 else 0, 6]


def test_the_other_quaternion_sign_is_the_same_rotation_and_its_own_undoing():
    vector = DRAW.uniform(-2, 2, (9, 3))
    other = other_sign(vector)
    np.testing.assert_allclose(
        Rotation.from_rotvec(other).as_matrix(), Rotation.from_rotvec(vector).as_matrix(), atol=1e-9
    )
    np.testing.assert_allclose(other_sign(other), vector)
    assert np.all(np.linalg.norm(other, axis=1) > 2 * np.pi - 4)


def test_actions_that_are_late_succeed_and_are_found_by_their_tracking():
    late = [shifted(action, -2) for action in TRUE]
    found = search(late, lambda actions: replace(play(actions), successes=3), ROBOT)
    assert found.as_recorded.good
    assert [(a.family, a.name) for a in found.chosen] == [("delay", "recorded 2 steps late")]
    assert "Actions mean" not in verdict(found, [])


def test_where_demonstrations_succeed_another_meaning_must_explain_nearly_all_of_the_error():
    """An easy task forgives a wrong rotation; a difference of another physics is no convention, whatever lessens it."""
    wrong = [np.concatenate([a[:, :3], -a[:, 3:6], a[:, 6:]], axis=1) for a in TRUE]
    found = search(wrong, lambda actions: replace(play(actions), successes=3), ROBOT)
    assert found.as_recorded.good
    assert [(a.family, a.name) for a in found.chosen] == [("rotation", "the other way round")]
    rest = 0.5 * found.as_recorded.error_m

    def elsewhere(actions):
        fit = play(actions)
        return replace(fit, successes=3, position_m=fit.position_m + rest)

    found = search(wrong, elsewhere, ROBOT)
    assert min(trial.fit.error_m for trial in found.trials) < 0.7 * found.as_recorded.error_m
    assert found.chosen == ()


@pytest.mark.parametrize(("successes", "idle", "told"), [(3, 0, True), (3, 2, True), (3, 3, None), (0, 0, False)])
def test_success_decides_only_beyond_what_succeeds_without_the_demonstrations(successes, idle, told):
    found = search(TRUE, lambda actions: ToolFit(successes, 3, 0.1, 0.0, 0.0, idle=idle), ROBOT)
    assert fits(found, []) is told
    assert ("Actions mean" in verdict(found, [])) == (told is True)
    assert ("Not decided" in verdict(found, [])) == (told is None)
    off = match(
        "picture",
        np.zeros((1, 4, 4, 3)),
        np.ones((1, 4, 4, 3)),
        [replace(image_alternatives()[0], change=np.ones_like)],
    )
    assert fits(found, [off]) is False


def test_a_lucky_success_explains_nothing():
    """One random episode of three succeeds, and so does one under a meaning that leads elsewhere."""

    def play_luckily(idle):
        def one(actions):
            lucky = actions[0][0, 6] == -TRUE[0][0, 6]  # the reversed gripper
            return ToolFit(int(lucky), 3, 0.05 if lucky else 0.1, 0, 0, 1.0, 1.0, idle=idle)

        return one

    assert [a.family for a in search(TRUE, play_luckily(0), ROBOT).chosen] == ["gripper"]
    assert search(TRUE, play_luckily(1), ROBOT).chosen == ()


def test_a_meaning_that_repeats_the_motion_explains_even_where_anything_succeeds():
    wrong = [a * np.array([1, 1, 1, 1, 1, 1, -1], np.float32) for a in TRUE]
    found = search(wrong, lambda actions: replace(play(actions), idle=3), ROBOT)
    assert [a.name for a in found.chosen] == ["reversed: +1 opens"]
    assert fits(found, []) is False


def test_nearer_is_no_explanation_without_success():
    found = search(TRUE, lambda actions: ToolFit(0, 3, float(np.abs(actions[0]).mean()), 0, 0, 0.25, 1.0), ROBOT)
    assert found.chosen == ()
    assert "No convention that was tried explains it" in verdict(found, [])


@pytest.mark.parametrize(("measured", "meant"), [(1.97, 2.0), (19.3, 20.0), (0.52, 0.5), (0.021, 0.02), (4.0, 4.0)])
def test_measured_factors_have_a_round_neighbour(measured, meant):
    assert round_factor(measured) == pytest.approx(meant)


def test_what_demonstrations_never_use_is_not_measured():
    still = [a * np.array([1, 1, 1, 0, 0, 0, 1], np.float32) for a in TRUE]
    assert ROBOT.unexercised(still) == ["rotation"]
    assert ROBOT.unexercised(TRUE) == []
    found = search([-a for a in still], lambda actions: ToolFit(0, 3, 0.1, 0.0, 0.0), ROBOT)
    assert not any("rotation" in name for trial in found.trials for name in trial.names)
    assert "No convention that was tried explains it" in verdict(found, [])


@pytest.mark.parametrize("alternative", image_alternatives(), ids=lambda a: a.name)
def test_images(alternative):
    suite = DRAW.integers(0, 255, (3, 8, 8, 3)).astype(np.uint8)
    recorded = alternative.change(suite)  # each is its own undoing
    found = match("picture", recorded, suite, image_alternatives())
    assert found.chosen is not None
    assert found.chosen.name == alternative.name
    assert found.best == 0 < found.error
    assert match("picture", suite, suite, image_alternatives()).chosen is None
    noisy = np.clip(suite + DRAW.normal(0, 20, suite.shape), 0, 255).astype(np.uint8)  # other shadows, not another turn
    assert match("picture", noisy, suite, image_alternatives()).chosen is None


def test_states_are_measured_part_by_part():
    suite = np.column_stack([DRAW.uniform(-1, 1, (4, 3)), DRAW.uniform(0.5, 1, (4, 3)), [[0.04, -0.04]] * 4])
    recorded = suite.copy()
    recorded[:, :3] *= 1000
    recorded[:, 7] *= -1
    found = {m.what: m.chosen.name if m.chosen else None for m in ROBOT.states(recorded, suite)}
    assert found == {"state position": "in millimetres", "state rotation": None, "state fingers": "both positive"}


def test_every_alternative_keeps_shape_and_dtype_and_changes_a_copy():
    action, state = TRUE[0], np.ones((4, 8), np.float32)
    for given, alternatives in (
        (action, action_alternatives(0.5, 2.0, 0.5)),
        (state, state_alternatives()),
    ):
        before = given.copy()
        for alternative in alternatives:
            changed = alternative.change(given)
            assert changed.shape == given.shape
            assert changed.dtype == given.dtype
            assert not np.array_equal(changed, given)
        np.testing.assert_array_equal(given, before)
