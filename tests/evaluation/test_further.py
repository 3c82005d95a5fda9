"""Errors of further views and of the measured state, in closed form."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from worldrl.evaluation.world_model.further import further_errors, state_errors
from worldrl.evaluation.world_model.gates import GateThresholds, measure_gates
from worldrl.evaluation.world_model.rollout_error import Replay, replay
from worldrl.rewards.success import SuccessRule

POSE = ("x", "y", "z", "rx", "ry", "rz", "finger_left", "finger_right")


def made(further=None, state=None, names=POSE):
    frames, valid = np.zeros((2, 16, 4, 4, 3), np.uint8), np.ones((2, 16), bool)
    valid[1, 8:] = False  # the second episode ends after 16 control steps
    return Replay(frames, frames, valid, np.zeros((2, 16), np.float32), 2, further or {}, state, names)


def test_each_further_view_has_its_own_psnr_over_the_episodes_that_last():
    real, imagined = np.zeros((2, 16, 4, 4, 3), np.uint8), np.zeros((2, 16, 4, 4, 3), np.uint8)
    imagined[0, 3], imagined[1, 3], imagined[0, 15], imagined[1, 15] = 51, 51, 51, 255
    values = further_errors(made({"wrist_image": (real, imagined)}), (8, 32, 64))
    expected = -10 * np.log10(0.2**2)
    assert values == pytest.approx({f"closed_loop.psnr@{h}.wrist_image": expected for h in (8, 32)})
    assert further_errors(made()) == {}


def test_a_pose_is_off_by_centimetres_and_degrees_whatever_its_rotation_vector():
    real = np.zeros((2, 16, 8), np.float32)
    real[..., 3:6] = [np.pi - 0.01, 0.0, 0.0]
    imagined = real.copy()
    imagined[..., 0] += 0.03
    imagined[..., 1] += 0.04
    turned = Rotation.from_rotvec(real[0, 0, 3:6]) * Rotation.from_rotvec([np.deg2rad(5), 0, 0])
    imagined[..., 3:6] = turned.as_rotvec()  # on the other side of half a turn: far as numbers, near as a pose
    assert np.abs(imagined - real)[..., 3].max() > 6
    errors = state_errors(made(state=(real, imagined)))
    assert errors["state_cm"] == pytest.approx(5.0, rel=1e-4)
    assert errors["state_deg"] == pytest.approx(5.0, rel=1e-3)
    values = further_errors(made(state=(real, imagined)), (32,))
    assert values == pytest.approx({"closed_loop.state_cm@32": 5.0, "closed_loop.state_deg@32": 5.0}, rel=1e-3)
    joints = state_errors(made(state=(real, imagined), names=("a", "b")))
    assert joints["state_error"][0, 0] == pytest.approx(np.abs(imagined - real)[0, 0].mean())


def test_the_worst_further_view_is_a_gate_where_there_is_one(make_two_views, push_simulator, push_episode):
    model, episodes = make_two_views()
    result = replay(model, episodes, np.stack([e.action[:12] for e in episodes]), seed=0)
    assert result.real.shape == result.further["wrist_image"][0].shape == (4, 6, 16, 16, 3)
    for row, episode in enumerate(episodes):
        np.testing.assert_array_equal(result.real[row, 1], episode.view("scene")[4])
        np.testing.assert_array_equal(result.further["wrist_image"][0][row, 1], episode.view("wrist")[4])
        np.testing.assert_array_equal(result.state[0][row, 1], episode.state[4])
    rule = SuccessRule(0.5, 1)
    gates, metrics = measure_gates(model, episodes, rule, GateThresholds(), seed=0)
    (view,) = [gate for gate in gates if gate.name == "view_psnr"]
    assert view.value == metrics["closed_loop.psnr@32.wrist_image"]
    assert not view.passed  # untrained
    alone, _ = measure_gates(
        push_simulator(error=4), [push_episode(n, 34) for n in range(2)], rule, GateThresholds(), seed=0
    )
    assert "view_psnr" not in {gate.name for gate in alone}


@pytest.fixture
def make_two_views(make_world_model, push_episode):
    """An untrained model of two views and the state, and episodes that have them."""
    from dataclasses import replace

    from worldrl.core.rng import initial_weights
    from worldrl.world_models.video.config import VideoWorldModelConfig
    from worldrl.world_models.video.model import VideoWorldModel

    def make():
        plain = make_world_model()
        names = {"cameras": ["image", "wrist_image"], "state": "measured"}
        config = VideoWorldModelConfig.from_json({**plain.config.to_json(), **names})
        with initial_weights(0, "views"):
            model = VideoWorldModel(config, plain.embodiment).eval()
        episodes = []
        for number in range(4):
            e = push_episode(number, 34)
            state = np.random.default_rng(number).normal(size=e.state.shape).astype(np.float32)
            frames = np.concatenate([e.frames, 255 - e.frames], axis=1)
            episodes.append(replace(e, frames=frames, cameras=("scene", "wrist"), state=state))
        return model, episodes

    return make
