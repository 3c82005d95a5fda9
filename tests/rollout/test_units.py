"""Units through a bimanual episode: what is recorded and executed as rad and openings is degrees and millimetres in the scene."""

from contextlib import closing

import mujoco
import numpy as np
import pytest
import torch

from worldrl.rewards.motion.readout import choose_columns, recorded_names
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.imagined.decoded_plans import joint_path
from worldrl.rollout.real.embedded import embedded_embodiment, embedded_options
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.slots import EnvSlot
from worldrl.rollout.real.specs import EpisodeSpec

ARMS, TASK = ("left", "right"), "BimanualOpenDrawer"
GAP_MM = 90.0
"""Between the fingers of an open hand."""


def degrees_and_gap(env):
    """Each joint's angle (degrees) from the poses of the two bodies that it connects, and the gap of each hand (mm) from its pads.

    What MuJoCo says of its joints is not asked.
    """
    sim = env.unwrapped.sim
    model, data = sim.model, sim.data
    found = []
    for arm in ARMS:
        for number in range(1, 7):
            joint = model.joint(f"{arm}_joint{number}")
            body = model.body(joint.bodyid[0])
            turned = data.xmat[body.parentid[0]].reshape(3, 3).T @ data.xmat[body.id].reshape(3, 3)
            rest = np.zeros(9)
            mujoco.mju_quat2Mat(rest, body.quat)
            turned = rest.reshape(3, 3).T @ turned
            across = (
                np.array([turned[2, 1] - turned[1, 2], turned[0, 2] - turned[2, 0], turned[1, 0] - turned[0, 1]]) / 2
            )
            found.append(np.degrees(np.arctan2(across @ joint.axis, (np.trace(turned) - 1) / 2)))
        pads = [data.geom(f"{arm}_pad_{finger}") for finger in "ab"]
        inner = np.linalg.norm(pads[0].xpos - pads[1].xpos) - 2 * model.geom(f"{arm}_pad_a").size[1]
        found.append(1000 * inner)
    return np.array(found)


def shown(state):
    """Recorded numbers ``[14]`` in degrees and millimetres."""
    gripper = np.arange(14) % 7 == 6
    return np.where(gripper, GAP_MM * state, np.degrees(state))


def test_what_is_recorded_are_the_scenes_angles_and_gaps():
    spec = EpisodeSpec(TASK, 0, 3)
    (episode,) = EmbeddedPlayer(embedded_options([TASK], 16), workers=0).play([(spec, ExpertActor())], hold_steps=0)
    columns = choose_columns(["state"], recorded_names(embedded_embodiment([TASK])))
    assert [column.unit for column in columns] == 2 * [*6 * ["rad"], ""]
    with closing(EnvSlot(embedded_options([TASK], 16))) as slot:
        slot.reset(spec, render=False)
        env = slot.env
        np.testing.assert_allclose(shown(episode.state[0]), degrees_and_gap(env), atol=0.2)
        for step, action in enumerate(episode.action, start=1):
            env.step(action)
            # One finger is measured and the other follows it: a few hundredths of a millimetre late.
            np.testing.assert_allclose(shown(episode.state[step]), degrees_and_gap(env), atol=0.2)
    moved = np.ptp([shown(state) for state in episode.state], axis=0)
    assert np.delete(moved, [6, 13]).max() > 5
    assert moved[13] > 20


def test_a_plan_given_in_degrees_and_openings_turns_and_opens_so_far():
    """Ten frames: the left base turns by 20 degrees, the right hand by -30, the left hand half closes."""
    with closing(EnvSlot(embedded_options([TASK], 16))) as slot:
        slot.reset(EpisodeSpec(TASK, 0, 3), render=False)
        env = slot.env
        before, told = degrees_and_gap(env), env.unwrapped.command
        wanted = torch.from_numpy(told.copy())
        wanted[0] += np.deg2rad(20)
        wanted[12] -= np.deg2rad(30)
        wanted[6] = 0.5
        path = joint_path(
            torch.from_numpy(told)[None], wanted.repeat(10, 1)[None], 2, embedded_embodiment([TASK]).actions
        )[0]
        for action in [*path, *path[-1:].repeat(20, axis=0)]:
            env.step(action)
        turned = degrees_and_gap(env) - before
    assert turned[[0, 12]] == pytest.approx([20, -30], abs=0.5)
    assert turned[6] == pytest.approx(-GAP_MM / 2, abs=1)
    others = np.delete(turned, [0, 6, 12])
    assert np.abs(others).max() < 0.5
