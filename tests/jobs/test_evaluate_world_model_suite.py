"""Unit under test: ``worldrl evaluate-world-model suite=FILE.py:Class``, in real worker processes of the adapter."""

from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, numpy_stream
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.world_model.probe import ProbeSettings
from worldrl.jobs.data import collect
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.world_model import evaluate_world_model
from worldrl.jobs.world_model.evaluate_world_model import EvaluateWorldModelSettings
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.suites import opening
from worldrl.recipes.suites.reality import Processes, open_reality
from worldrl.recipes.world_model.policy_rollouts import PolicyRolloutConfig
from worldrl.rollout.real.execution import HOLD_STEPS, Script, continued, true_runs
from worldrl.rollout.suites.registry import find_suite


class StopError(Exception):
    """Ends a run where its simulator would start."""


SUITE = f"{Path(__file__).parents[1] / 'workers' / 'reach_adapter.py'}:Reach"
SIZE = 16
TIMED = ("imagined_frames_per_s", "peak_rss_mb", "peak_device_mb")


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    """Two episodes of each task of the adapter."""
    folder = tmp_path_factory.mktemp("unseen")
    processes = {"workers": 1, "envs_per_worker": 2}
    collect.main(CollectSettings(run_dir=str(folder), suite=SUITE, expert_episodes=2, image_size=SIZE, **processes))
    return folder / "dataset"


@pytest.fixture
def make_settings(unseen, make_world_model, tmp_path):
    robot = find_suite(SUITE).embodiment
    make_world_model(size=SIZE, robot=robot).save(tmp_path / "world_model")
    with initial_weights(0, "policy"):
        sizes = {"width": 8, "blocks": 1, "keypoints": 4, "text_width": 8, "hidden": 16}
        config = TokenPolicyConfig(image_size=SIZE, chunk_length=4, **sizes)
        ones = torch.ones(2)
        TokenPolicy(config, PolicyStatistics(-ones, ones, 0 * ones, ones, robot.actions)).save(tmp_path / "policy")

    def make(**over):
        processes = {"workers": 1, "envs_per_worker": 2}
        small = {"horizons": [8, 40], "speed_rows": [1], "speed_chunks": 1, "threads": 1, "dtype": "float32"}
        return EvaluateWorldModelSettings(
            **{
                "run_dir": str(tmp_path / "run"),
                "suite": SUITE,
                "world_model": str(tmp_path / "world_model"),
                "data": [str(unseen)],
                "policies": PolicyRolloutConfig([str(tmp_path / "policy")], imagined_rollouts=3, **processes),
                **small,
                **over,
            }
        )

    return make


def test_it_is_measured_beside_its_own_simulator_and_a_second_start_starts_no_worker(make_settings, monkeypatch):
    metrics = evaluate_world_model.main(make_settings())
    assert (metrics["suite"], metrics["episodes"], metrics["repeated"]["rate"]) == ("reach", 4, 1)
    assert metrics["outcome_alignment"]["n"] == 4
    assert metrics["recorded"]["40"] == 0  # continued beyond what was recorded
    assert "does not state where its objects are" in metrics["not_computed"]["probe_error_cm"]
    assert not [name for name in metrics if name.startswith("probe_")]
    (policy,) = metrics["policies"]
    assert policy["imagined"]["n"] == policy["real"]["n"] == policy["same_actions"]["outcome_alignment"]["n"] == 6

    def refuse(*_args, **_more):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(opening, "SimulatorPool", refuse)
    again = evaluate_world_model.main(make_settings())
    assert {name: again[name] for name in again if name not in TIMED} == {
        name: metrics[name] for name in metrics if name not in TIMED
    }


def test_recordings_repeat_and_joints_return_to_where_they_began(unseen):
    """The way back of joint targets passes the recorded commands in reverse."""
    episodes = list(EpisodeDataset.open(unseen))
    scripts, suite = [Script.of(episode) for episode in episodes], find_suite(SUITE)
    rules = {"continuation": "retrace", "embodiment": suite.embodiment}
    actions = [continued(script, scripts, 60, **rules, generator=numpy_stream(0)) for script in scripts]
    shown = {"image_size": SIZE, "images": ("image",)}
    with open_reality(suite, suite.tasks(), Processes(1, 3, 60), **shown) as reality, reality.slots() as slots:
        runs = list(true_runs(slots, scripts, actions))  # more scripts than simulators
    assert len(runs) == len(episodes) == 4
    for run, episode in zip(runs, episodes, strict=True):
        back = 2 * (len(episode) + HOLD_STEPS)
        assert run.repeated
        assert (run.recorded, run.names, run.cameras) == (len(episode), (), {})
        np.testing.assert_array_equal(run.episode.frames[: len(episode) + 1], episode.frames)
        np.testing.assert_allclose(run.episode.state[back], episode.state[0], atol=1e-5)
        assert np.abs(run.episode.state[back // 2] - episode.state[0]).max() > 0.05


@pytest.mark.parametrize("shadows", [True, False])
def test_the_simulator_draws_the_shadows_that_are_asked_for(make_settings, monkeypatch, shadows):
    asked = []

    def lazy(suite, workers, **more):
        asked.append(workers.shadows)
        raise StopError

    monkeypatch.setattr(opening, "SuiteOnDemand", lazy)
    with pytest.raises(StopError):
        evaluate_world_model.main(make_settings(shadows=shadows))
    assert asked == [shadows]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"probe_from": "probe"}, "does not state where its objects are; leave it out"),
        ({"policies": PolicyRolloutConfig(workers=0)}, "runs in processes of its own; give 1 or more"),
        ({"suite": "libero_goa"}, "did you mean 'libero_goal'"),
    ],
)
def test_what_the_suite_lacks_is_refused(make_settings, over, message):
    with pytest.raises(SettingError, match=message):
        make_settings(**over)


def test_episodes_of_another_suite_are_refused(make_settings, unseen, tmp_path):
    settings = make_settings(suite="embedded", probe=ProbeSettings(steps=0))
    with pytest.raises(SettingError, match="was recorded in reach, not in worldrl; give its own with suite="):
        evaluate_world_model.main(settings)
    lab = tmp_path / "lab.py"
    lab.write_text(
        Path(SUITE.rpartition(":")[0]).read_text().replace("reach-red", "reach-green") + "\n    name = 'reach'\n"
    )
    with pytest.raises(SettingError, match="task 'reach-red' is not of the suite reach; did you mean"):
        evaluate_world_model.main(make_settings(suite=f"{lab}:Reach"))
    assert not (tmp_path / "run").exists()
