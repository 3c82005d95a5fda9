"""Unit under test: ``worldrl.methods.offline.datasets.behaviour_sac``, on the real Stable-Baselines3 and MuJoCo."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import stream
from worldrl.core.storage.artefact import read_artefact
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.data.offline.trajectories import from_episodes
from worldrl.methods.offline.datasets.behaviour_actor import BehaviourActor
from worldrl.methods.offline.datasets.behaviour_sac import (
    BehaviourSac,
    Evaluated,
    _Learner,
    actor_folder,
    read_experience,
    train_behaviour,
)
from worldrl.rollout.vector.episodes import environment_info, make_environment

pytest.importorskip("stable_baselines3")
pytest.importorskip("imageio")  # Gymnasium's MuJoCo environments import it

ENV = "InvertedPendulum-v5"
SMALL = {"hidden": (8, 8), "batch_size": 16, "learning_starts": 25, "evaluation_episodes": 1}
CONFIG = BehaviourSac(steps=100, checkpoint_every=40, **SMALL)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Evaluated]]:
    folder = tmp_path_factory.mktemp("sac")
    return folder, train_behaviour(folder, ENV, CONFIG, seed=3)


def newest_state(folder: Path) -> dict[str, Any]:
    artefact = read_artefact(folder / "checkpoints" / "step-00000100", kind="checkpoint")
    return {"config": artefact.config, "tensors": artefact.tensors}


def test_a_training_that_was_stopped_equals_one_that_was_not(
    trained: tuple[Path, list[Evaluated]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    same_tree: Callable[[Any, Any], None],
) -> None:
    folder, kept = trained
    evaluate = _Learner.evaluate

    def stop_at_80(learner: _Learner) -> float:
        if learner.step == 80:
            raise KeyboardInterrupt
        return evaluate(learner)

    with monkeypatch.context() as patch, MetricLog(tmp_path, tracker=TrackerName.none) as log:
        patch.setattr(_Learner, "evaluate", stop_at_80)
        with pytest.raises(KeyboardInterrupt):
            train_behaviour(tmp_path / "sac", ENV, CONFIG, seed=3, log=log)
    torch.rand(5)  # whatever else drew from the global stream meanwhile
    np.random.default_rng(0)
    with MetricLog(tmp_path, tracker=TrackerName.none) as log:
        again = train_behaviour(tmp_path / "sac", ENV, CONFIG, seed=3, log=log)
    assert again == kept
    assert [one.step for one in kept] == [40, 80, 100]
    assert [line["step"] for line in read_metrics(tmp_path)] == [40, 80, 100]
    same_tree(newest_state(tmp_path / "sac"), newest_state(folder))
    for step in (40, 80, 100):
        mine, theirs = (
            read_artefact(place / "experience" / f"step-{step:08d}", kind="sac-experience").tensors
            for place in (tmp_path / "sac", folder)
        )
        same_tree(mine, theirs)


def test_a_finished_training_only_reports(trained: tuple[Path, list[Evaluated]]) -> None:
    folder, kept = trained
    assert train_behaviour(folder, ENV, CONFIG, seed=3) == kept


def test_the_experience_is_whole_and_cut_at_the_borders(trained: tuple[Path, list[Evaluated]]) -> None:
    folder, _ = trained
    env = make_environment(ENV)
    data = from_episodes(environment_info(env, "replay"), read_experience(folder, 80))
    assert len(data) == 80
    ends = np.flatnonzero(data.terminated | data.truncated)
    assert {39, 79} <= set(ends.tolist())
    assert data.terminated.any()
    assert data.seed is not None
    assert data.seed[0] >= 0
    assert (data.seed < 0).any()  # only the first episode of a stretch was reset with a seed
    assert len(read_experience(folder, 40)) < len(read_experience(folder, 100))
    # Setting the simulator to a recorded state and acting as recorded leads to the recorded successor.
    simulator: Any = env.unwrapped
    assert data.qpos is not None
    assert data.qvel is not None
    for row in (0, 17, 39, 40, 79):
        env.reset(seed=1)
        simulator.set_state(data.qpos[row], data.qvel[row])
        obs, reward, terminated, *_ = env.step(data.action[row])
        np.testing.assert_allclose(obs, data.next_obs[row], atol=1e-5)
        assert (reward, terminated) == (data.reward[row], data.terminated[row])


def test_the_kept_actor_acts_as_stable_baselines_does(trained: tuple[Path, list[Evaluated]]) -> None:
    folder, kept = trained
    actor = BehaviourActor.load(actor_folder(folder, 100))
    assert actor.config["return"] == kept[-1].value
    learner = _Learner(folder, ENV, CONFIG, seed=3)
    learner.training(None).resume()
    obs = torch.randn(50, 4, generator=stream(0, "obs"))
    theirs, _ = learner.sac.predict(obs.numpy(), deterministic=True)
    np.testing.assert_allclose(3 * actor.act(obs, generator=None).numpy(), theirs, atol=1e-6)  # actions in [-3, 3]
    action = actor.act(obs, generator=stream(0, "noise"))
    noise = torch.randn(50, 1, generator=stream(0, "noise"))
    mean, log_std, _ = learner.sac.actor.get_action_dist_params(obs)
    np.testing.assert_allclose(action, (mean + log_std.exp() * noise).tanh().detach(), atol=1e-6)
    learner.close()


def test_nothing_that_was_written_is_a_pickle(trained: tuple[Path, list[Evaluated]]) -> None:
    folder, _ = trained
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".json", ".safetensors"}


def test_experience_of_other_settings_is_refused(trained: tuple[Path, list[Evaluated]]) -> None:
    folder, _ = trained
    other = BehaviourSac(steps=100, checkpoint_every=40, **(SMALL | {"hidden": (8, 9)}))  # type: ignore[arg-type]
    with pytest.raises(ArtefactError, match="use the config it was trained with"):
        train_behaviour(folder, ENV, other, seed=3)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"gamma": 0.0}, {"tau": 1.5}, {"hidden": ()}, {"learning_rate": -1.0}])
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="training"):
        BehaviourSac(**bad)
