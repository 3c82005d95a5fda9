"""Unit under test: what continues a recording, and its execution in the real simulator."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import ArtefactError
from worldrl.core.rng import numpy_stream
from worldrl.rollout.agents.actors import ExpertActor, WanderActor
from worldrl.rollout.real.execution import HOLD_STEPS, Script, continued, point_names, return_to_start, still, true_runs
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.slots import EmbeddedSlots
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec


def path(robot, start, action):
    after = integrate_commands(robot, torch.from_numpy(start)[None], torch.from_numpy(action)[None])[0].numpy()
    return np.concatenate([start[None], after])


def script_of(robot, number, steps=20, scale=1.0):
    """A random walk that runs into the workspace's walls and its largest rotation."""
    draw = numpy_stream(number, "walk")
    action = np.repeat(draw.uniform(-scale, scale, (-(-steps // 5), 7)), 5, axis=0)[:steps].astype(np.float32)
    start = np.array([0.48, 0.0, 0.14, 0.0, 0.0, 0.0, -1.0], np.float32)
    command = path(robot, start, action)
    return Script(EpisodeSpec("PickRedCube", number, 0), action, command, np.zeros((steps + 1, 8), np.float32))


@pytest.mark.parametrize("number", range(5))
def test_retracing_passes_every_pose_backwards(robot, number):
    script = script_of(robot, number, steps=60)
    back = return_to_start(robot, script.command)
    assert np.abs(back).max() <= 1
    assert back.dtype == np.float32
    poses = path(robot, script.command[-1], back)
    np.testing.assert_allclose(poses, script.command[::-1], atol=2e-5)
    if number == 0:  # the walk did meet a wall, where action and motion differ
        moved = np.diff(script.command[:, :3], axis=0) / robot.position_scale
        assert np.abs(moved - script.action[:, :3]).max() > 0.1


def test_a_continuation_goes_back_home_and_acts_as_another(robot):
    scripts = [script_of(robot, number) for number in range(3)]
    one = scripts[0]
    action = continued(one, scripts[1:2], 90, continuation="retrace", embodiment=robot, generator=numpy_stream(0))
    leg = len(one) + HOLD_STEPS
    np.testing.assert_array_equal(action[: len(one)], one.action)
    np.testing.assert_array_equal(action[len(one) : leg], still(robot.actions, one.action[-1]))
    np.testing.assert_array_equal(action[2 * leg : 2 * leg + len(one)], scripts[1].action)
    poses = path(robot, one.command[0], action)
    np.testing.assert_allclose(poses[2 * leg], one.command[0], atol=2e-5)
    np.testing.assert_allclose(poses[2 * leg : 2 * leg + 21], scripts[1].command, atol=2e-5)


def test_a_shorter_continuation_is_the_beginning_of_a_longer_one(robot):
    scripts = [script_of(robot, number, scale=0.5) for number in range(4)]

    def actions(steps, seed=0, kind="retrace"):
        return continued(scripts[0], scripts, steps, continuation=kind, embodiment=robot, generator=numpy_stream(seed))

    for kind in ("retrace", "hold"):
        whole = actions(256, kind=kind)
        assert whole.shape == (256, 7)
        for steps in (5, 20, 27, 28, 61, 200):
            np.testing.assert_array_equal(actions(steps, kind=kind), whole[:steps])
    assert any(not np.array_equal(actions(256, seed), actions(256)) for seed in range(1, 5))
    held = actions(60, kind="hold")
    np.testing.assert_array_equal(held[20:], still(robot.actions, scripts[0].action[-1], 40))


@pytest.fixture
def slots():
    with closing(EmbeddedSlots(EnvOptions(image_size=16))) as held:
        yield held


@pytest.fixture(scope="module")
def recorded():
    specs = [EpisodeSpec("PickRedCube", 3, 7, style="dim"), EpisodeSpec("CloseDrawer", 1, 7)]
    actors = [ExpertActor(), WanderActor()]
    options = EnvOptions(image_size=16, max_steps={"CloseDrawer": 12})
    return list(EmbeddedPlayer(options, workers=0).play(list(zip(specs, actors, strict=True)), hold_steps=4))


def test_a_recording_repeats_itself_and_continues(recorded, slots):
    scripts = [Script.of(episode) for episode in recorded]
    steps = [len(scripts[0]) + 30, 20]
    actions = [
        np.concatenate([script.action, still(TOOL_ACTIONS, script.action[-1], more)])[:until]
        for script, more, until in zip(scripts, (30, 8), steps, strict=True)
    ]
    for run, episode, until in zip(true_runs(slots, scripts, actions), recorded, steps, strict=True):
        length = len(episode)
        assert len(run.episode) == until > run.recorded == length
        assert run.repeated
        np.testing.assert_array_equal(run.episode.frames[: length + 1], episode.frames)
        np.testing.assert_array_equal(run.episode.state[: length + 1], episode.state)
        np.testing.assert_array_equal(run.episode.reward[:length], episode.reward)
        np.testing.assert_array_equal(run.point[:, 0], run.episode.state[:, :3])
        assert run.names == point_names(episode.task)
        assert run.point.shape == (until + 1, len(run.names), 3)
        assert run.episode.instruction == episode.instruction


def test_points_are_where_things_are(recorded, slots):
    script = Script.of(recorded[0])
    (run,) = true_runs(slots, [script], [script.action])
    assert run.names == ("gripper", "red_cube", "green_cylinder", "yellow_brick")
    lift = run.point[:, 1, 2] - run.point[0, 1, 2]
    assert lift[0] == 0
    assert lift.max() > 0.08  # lifted, as the task asks
    assert np.linalg.norm(run.point[-1, 0] - run.point[-1, 1]) < 0.04  # in the hand
    assert np.ptp(run.point[:, 2:], axis=0).max() < 0.02  # the others stay
    assert run.succeeds_within(len(run.episode))
    assert not run.succeeds_within(5)
    assert point_names("CloseDrawer") == ("gripper", "drawer")


def test_the_moving_camera_shows_the_cube_where_it_says(recorded):
    script = Script.of(recorded[0])
    with closing(EmbeddedSlots(EnvOptions(image_size=64, cameras=("scene", "wrist")))) as both:
        (run,) = true_runs(both, [script], [script.action])
    assert set(run.cameras) == {"image", "wrist_image"}
    frames, cube = run.episode.frames[:, 1].astype(int), run.names.index("red_cube")
    sight = run.cameras["wrist_image"].project(run.point)[:, cube]
    found = 0
    for frame, (u, v, depth) in zip(frames, sight, strict=True):
        rows, columns = np.nonzero((frame[..., 0] > 2 * frame[..., 1:].max(axis=-1)) & (frame[..., 0] > 60))
        if len(rows) < 20 or min(rows.min(), columns.min()) == 0 or max(rows.max(), columns.max()) == 63:
            continue  # cut by the edge, or hardly seen
        place = [(columns.mean() + 0.5) / 32 - 1, (rows.mean() + 0.5) / 32 - 1]
        assert place == pytest.approx([u, v], abs=0.12)
        assert 0 < depth < 1
        found += 1
    assert found > 5


def test_another_course_is_noticed(recorded, slots):
    script = Script.of(recorded[0])
    action = script.action.copy()
    action[3, 0] = -action[3, 0] if abs(action[3, 0]) > 0.3 else 1.0
    (run,) = true_runs(slots, [script], [action])
    assert not run.repeated


def test_an_episode_of_unknown_origin_is_refused(push_episode):
    with pytest.raises(ArtefactError, match="nothing says where it began"):
        Script.of(push_episode(0))


def test_the_statement_that_was_reported_is_reported_again(recorded, slots):
    other = replace(recorded[0], instruction="lift the red one")
    script = Script.of(other)
    (run,) = true_runs(slots, [script], [script.action[:2]])
    assert run.episode.instruction == "lift the red one"
