"""Unit under test: ``worldrl make-dataset``, with the real Minari and Stable-Baselines3."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from worldrl.core.errors import GateError, SettingError
from worldrl.data.offline.loading import open_trajectories
from worldrl.jobs.data import make_dataset
from worldrl.jobs.data.make_dataset import KINDS, Choice, MakeDatasetSettings, first_medium, main
from worldrl.methods.offline.datasets.behaviour_sac import BehaviourSac, Evaluated

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")
pytest.importorskip("imageio")  # Gymnasium's MuJoCo environments import it
pytest.importorskip("stable_baselines3")


def settings(run_dir: Path, **over: Any) -> MakeDatasetSettings:
    training = BehaviourSac(
        steps=120, checkpoint_every=60, hidden=(8, 8), batch_size=16, learning_starts=40, evaluation_episodes=1
    )
    small = {"env": "InvertedPendulum-v5", "rows": 60, "reference_episodes": 2, "gates": "warn", "training": training}
    return MakeDatasetSettings(run_dir=str(run_dir), **(small | over))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    run_dir = tmp_path_factory.mktemp("make") / "run"
    return run_dir, main(settings(run_dir))


def load(run_dir: Path, kind: str) -> Any:
    return open_trajectories(f"worldrl/invertedpendulum-v5/{kind}-v0", store=run_dir / "datasets")


def test_every_set_is_a_whole_minari_dataset(
    whole: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, metrics = whole
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(run_dir / "datasets"))
    assert set(minari.list_local_datasets()) == {entry["id"] for entry in metrics["sets"].values()}
    assert set(metrics["sets"]) == set(KINDS)
    replayed = {"medium-replay": metrics["medium_step"], "full-replay": 120}
    for kind, entry in metrics["sets"].items():
        data = load(run_dir, kind)
        assert len(data) == entry["rows"] == replayed.get(kind, 60)
        assert data.qpos is not None
        assert data.qpos.shape == data.qvel.shape == (len(data), 2)
        assert data.seed is not None
        assert data.info.env_id == "InvertedPendulum-v5"
        assert data.info.provenance["kind"] == kind
        assert data.info.provenance["packages"]["stable-baselines3"]
        if metrics["expert"] > metrics["random"]:
            assert (data.info.ref_min, data.info.ref_max) == (metrics["random"], metrics["expert"])
    result = json.loads((run_dir / "result.json").read_text())
    assert result["metrics"] == metrics


def test_medium_expert_is_half_of_each(whole: tuple[Path, dict[str, Any]]) -> None:
    run_dir, _ = whole
    mixed, medium, expert = (load(run_dir, kind) for kind in ("medium-expert", "medium", "expert"))
    np.testing.assert_array_equal(mixed.obs[:30], medium.obs[:30])
    np.testing.assert_array_equal(mixed.action[30:], expert.action[:30])
    assert mixed.truncated[29] or mixed.terminated[29]


def test_a_run_that_was_stopped_anywhere_gives_the_same_datasets(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = make_dataset.write_minari, []

    def stop(*arguments: Any, **named: Any) -> Path:
        folder = write(*arguments, **named)
        calls.append(folder)
        if len(calls) in (1, 3):  # written, and the stage not finished yet
            raise KeyboardInterrupt
        return folder

    monkeypatch.setattr(make_dataset, "write_minari", stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            main(settings(tmp_path / "run"))
    metrics = main(settings(tmp_path / "run"))
    assert len(calls) == len(KINDS) + 2
    for kind in KINDS:
        one, other = load(tmp_path / "run", kind), load(whole[0], kind)
        for name in (
            "obs",
            "action",
            "reward",
            "next_obs",
            "terminated",
            "truncated",
            "episode",
            "qpos",
            "qvel",
            "seed",
        ):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=f"{kind} {name}")
    drop = {"folder"}
    for kind, entry in metrics["sets"].items():
        assert {k: v for k, v in entry.items() if k not in drop} == {
            k: v for k, v in whole[1]["sets"][kind].items() if k not in drop
        }


@pytest.mark.slow
def test_a_killed_command_resumes(tmp_path: Path) -> None:
    """The real command, killed in training and again while it writes, against one that was left alone."""

    def command(run_dir: Path) -> list[str]:
        return [sys.executable, "-m", "worldrl", "make-dataset", "preset=tiny", f"run_dir={run_dir}"]

    for sign in ("stages/02-train/checkpoints/step-00000150", "stages/05-medium/stage.json"):
        process = subprocess.Popen(command(tmp_path / "killed"), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while not (tmp_path / "killed" / sign).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    for run_dir in ("killed", "whole"):
        subprocess.run(command(tmp_path / run_dir), check=True, stderr=subprocess.DEVNULL)
    for kind in KINDS:
        name = f"worldrl/pendulum-v1/{kind}-v0"
        one, other = (open_trajectories(name, store=tmp_path / run / "datasets") for run in ("killed", "whole"))
        for column in ("obs", "action", "reward", "next_obs", "episode", "seed"):
            np.testing.assert_array_equal(getattr(one, column), getattr(other, column), err_msg=f"{kind} {column}")


def test_another_runs_dataset_in_the_store_is_never_overwritten(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_dataset._Maker, "train", lambda self, folder, log: {"kept": [[60, 0.0]]})
    monkeypatch.setattr(make_dataset._Maker, "choose", lambda self, low, kept: vars(Choice(0.0, 1.0, 60, 60)))
    over = {"store": str(whole[0] / "datasets"), "kinds": ["random"], "seed": 1}
    with pytest.raises(SettingError, match=r"random-v0 holds another dataset; give version=1"):
        main(settings(tmp_path / "run", **over))
    assert main(settings(tmp_path / "other", version=1, **over))["sets"]["random"]["id"].endswith("random-v1")


def test_medium_is_the_first_that_reaches_a_third() -> None:
    actors = [Evaluated(10, 0.0), Evaluated(20, 45.0), Evaluated(30, 90.0), Evaluated(40, 60.0)]
    assert first_medium(actors, low=10, high=100).step == 20  # 40 is needed
    assert first_medium(actors, low=10, high=130).step == 30  # 50 is needed
    assert first_medium(actors, low=10, high=1000).step == 30  # none reaches it: the best


def test_an_expert_no_better_than_random_stops_the_run() -> None:
    bad = Choice(random=5.0, expert=5.0, medium_step=1, expert_step=1)
    with pytest.raises(GateError, match=r"returns 5, random actions 5: nothing was learned.*training.steps"):
        make_dataset._gate(bad, "stop")
    make_dataset._gate(bad, "warn")


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"kinds": ["medum"]}, "did you mean 'medium'"),
        ({"kinds": []}, "name at least one"),
        ({"kinds": ["random", "random"]}, "each once"),
        ({"rows": 1}, "two halves"),
        ({"namespace": "a b"}, "no Minari id"),
        ({"gates": "maybe"}, "gates"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path: Path, over: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        settings(tmp_path, **over)


def test_an_unknown_environment_lists_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'Hopper-v"):
        main(settings(tmp_path / "run", env="Hoper-v5"))


def test_own_environments_by_module_without_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "import gymnasium\n"
        "from gymnasium.envs.classic_control.pendulum import PendulumEnv\n"
        "gymnasium.register('own/Swing.Up-v0', entry_point=PendulumEnv)\n"
    )
    (tmp_path / "worldrl_test_swing.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"env": "worldrl_test_swing:own/Swing.Up-v0", "kinds": ["random"]}
    with pytest.raises(SettingError, match=r"has no time limit.*give max_episode_steps"):
        main(settings(tmp_path / "none", **own))
    try:
        metrics = main(settings(tmp_path / "run", max_episode_steps=20, **own))
        entry = metrics["sets"]["random"]
        assert entry["id"] == "worldrl/own-swing-up-v0/random-v0"
        info = open_trajectories(entry["folder"], env_id=own["env"]).info
        assert info.max_episode_steps == 20
    finally:
        gymnasium.registry.pop("own/Swing.Up-v0", None)
        sys.modules.pop("worldrl_test_swing", None)


def test_no_scale_is_printed_where_none_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"env": "x", "random": -1035.0, "expert": -1151.0, "sets": {}}
    make_dataset.show(metrics)
    told = capsys.readouterr().err
    assert "no reference scores: random actions return -1035, the best actor -1151" in " ".join(told.split())
    assert "score 0 is" not in told
