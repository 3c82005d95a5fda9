"""Unit under test: how far apart two views' probes read the same object."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.observation import IMAGE
from worldrl.evaluation.world_model.probe_frames import spread
from worldrl.evaluation.world_model.view_agreement import views_apart
from worldrl.rollout.camera import HandCamera


class Knowing:
    """Reads the true sights of a run, moved by ``offset`` (m) in the world."""

    names = ("gripper", "red_cube", "green_cylinder")

    def __init__(self, camera, run, offset):
        self.sight = camera.project(np.nan_to_num(spread(run, self.names)) + np.array(offset))

    def read(self, frames, task):
        return self.sight[frames[:, 0, 0, 0]].astype(np.float32)  # frames carry their number


def test_the_distance_of_two_readings_counts_only_objects_that_the_other_view_shows(push_runs):
    run, steps = push_runs[0], np.arange(0, 40, 4)  # of the red cube
    scene = run.cameras[IMAGE]
    above = replace(scene, position=scene.position + np.array([0.01, 0, -1.0]), half_width=0.2)
    away = replace(above, position=above.position + np.array([5.0, 0, 0]))
    hand = HandCamera.of([away if frame == 8 else above for frame in range(41)])
    run = replace(run, cameras={IMAGE: scene, "wrist_image": hand})
    probes = {IMAGE: Knowing(scene, run, [0, 0, 0]), "wrist_image": Knowing(hand, run, [0.03, 0.04, 0])}
    numbered = np.broadcast_to(steps.astype(np.uint8)[:, None, None, None], (len(steps), 2, 2, 3))
    apart = views_apart(probes, {IMAGE: numbered, "wrist_image": numbered}, run, steps)
    assert apart.shape == (10, 3)
    assert np.isnan(apart[:, [0, 2]]).all()  # the gripper, and what the scene lacks
    assert np.isnan(apart[2, 1])  # at step 8 the hand is elsewhere
    assert np.delete(apart[:, 1], 2) == pytest.approx(5, abs=1e-3)
