"""Unit under test: ``worldrl train-offline``, on a small dataset of Gymnasium's Pendulum."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from worldrl import cli
from worldrl.cli import COMMANDS
from worldrl.core.errors import SettingError
from worldrl.core.storage.log import read_metrics
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories, VectorEpisode, from_episodes
from worldrl.methods.offline.agent import Facts, load_agent, saved_algorithm
from worldrl.methods.offline.latent import video_latents
from worldrl.methods.offline.latent.latent_keypoints import KeypointTraining
from worldrl.methods.offline.online import online_world
from worldrl.recipes.offline import scores as offline_scores
from worldrl.recipes.offline import worlds as offline_worlds
from worldrl.recipes.offline.recurrent import RecurrentConfig
from worldrl.recipes.offline.scores import interval_scores
from worldrl.recipes.offline.settings import offline_agent, settings_for
from worldrl.registry import ALGORITHMS
from worldrl.reproductions.catalogue import CATALOGUE
from worldrl.reproductions.offline_video import reproduction as offline_video
from worldrl.reproductions.pgd.reproduction import GuidedSettings
from worldrl.rollout.vector.episodes import dataset_environment
from worldrl.settings import compose
from worldrl.usage import describe
from worldrl.world_models.latent.chunk_basis import ChunkBasis
from worldrl.world_models.latent.keypoints import KeypointEncoder
from worldrl.world_models.loading import open_world_model
from worldrl.world_models.state.terminations import RULES

OFFLINE = [name for name in ALGORITHMS.names() if name not in ("behaviour_cloning", "grpo")]


@pytest.fixture(scope="module")
def pendulum() -> Trajectories:
    """Three episodes of thirty random steps."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=30)
    episodes = []
    for seed in range(3):
        obs, _ = env.reset(seed=seed)
        seen, draws = [obs], np.random.default_rng(seed)
        action = draws.uniform(-2, 2, (30, 1)).astype(np.float32)
        steps = [env.step(a) for a in action]
        seen += [step[0] for step in steps]
        reward = np.array([step[1] for step in steps], np.float32)
        episodes.append(VectorEpisode(np.stack(seen).astype(np.float32), action, reward, False, True))
    info = DatasetInfo(
        "pendulum.hdf5", (-2.0,), (2.0,), env_id="Pendulum-v1", max_episode_steps=30, ref_min=-200.0, ref_max=0.0
    )
    return from_episodes(info, episodes)


@pytest.fixture
def run(pendulum: Trajectories, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Run the command line on that dataset."""
    monkeypatch.setattr(offline_worlds, "open_trajectories", lambda name, **_: pendulum)
    monkeypatch.chdir(tmp_path)

    def call(*tokens: str) -> int:
        return cli.main(["train-offline", "data=x", "preset=tiny", f"run_dir={tmp_path / 'run'}", *tokens])

    return call


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "result.json").read_text())


def test_run_whose_world_was_cut_says_so(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("ensemble_training.improvement=0.999", "ensemble_training.patience=1", "ensemble_training.max_epochs=9")
        == 0
    )
    assert result(tmp_path)["metrics"]["world"]["stopped"] == "patience"
    assert "max_epochs" not in capsys.readouterr().err
    (tmp_path / "run").rename(tmp_path / "whole")
    assert run() == 0
    assert "cut at ensemble_training.max_epochs=2, before patience" in capsys.readouterr().err.replace("\n", " ")


def test_run_ends_with_a_score_and_an_agent_that_loads(run: Any, tmp_path: Path, pendulum: Trajectories) -> None:
    assert run() == 0
    found = result(tmp_path)
    metrics = found["metrics"]
    raw, own = metrics["scores"]["raw"], metrics["scores"]["dataset"]
    assert raw["lo"] < raw["value"] < raw["hi"]
    for end in ("value", "lo", "hi"):
        assert own[end] == pytest.approx(100 * (raw[end] + 200) / 200)
    assert "d4rl" not in metrics["scores"]
    over = metrics["evaluation"]["over_estimation"]
    assert over["lo"] < over["mean"] < over["hi"]
    assert metrics["budget"] == {"evaluations": 3, "episodes": 4, "steps": 120, "online_steps": 0, "checked_steps": 0}
    assert [entry["step"] for entry in metrics["evaluations"]] == [5, 10]
    assert metrics["world"]["kind"] == "ensemble"
    assert len(metrics["world"]["elites"]) == 2
    folder = tmp_path / "run" / "agent"
    agent = load_agent(folder, offline_agent(saved_algorithm(folder)))
    action = agent.act(pendulum.transitions().obs, generator=None)
    assert action.shape == (90, 1)


def test_agent_on_another_device_is_played_with_observations_there(pendulum: Trajectories) -> None:
    class Elsewhere:
        device = torch.device("meta")

        def act(self, obs: torch.Tensor, *, generator: Any) -> torch.Tensor:
            assert obs.device == self.device
            return torch.zeros(1, 1)

        def value(self, obs: torch.Tensor) -> torch.Tensor:
            assert obs.device == self.device
            return torch.zeros(1)

    settings = SimpleNamespace(agent=None)
    found = offline_scores.play(settings, Elsewhere(), dataset_environment(pendulum.info), pendulum.info, 0, 2)
    assert found.predicted is not None


def stop_at_second_score(monkeypatch: Any) -> Any:
    """Let a run be interrupted when it plays its second evaluation; return what really plays."""
    play, calls = offline_scores.play, []

    def killed(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return play(*arguments)

    monkeypatch.setattr(offline_scores, "play", killed)
    return play


def test_stopped_run_resumes_and_ends_as_if_it_had_not(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    assert run() == 0
    whole = result(tmp_path)["metrics"]
    (tmp_path / "run").rename(tmp_path / "whole")
    play = stop_at_second_score(monkeypatch)
    assert run() == cli.INTERRUPTED
    monkeypatch.setattr(offline_scores, "play", play)
    assert run() == 0
    again = result(tmp_path)["metrics"]
    assert again == whole


@pytest.mark.parametrize(
    "name",
    ["combo", "edac", "f_dvl", "iql", "mbpo", "mobile", "mopo", "rambo", "recoil", "ro2o", "sac_n"],
)
def test_other_algorithms_run(run: Any, tmp_path: Path, name: str) -> None:
    own = {
        "combo": ["agent.actions=2"],
        "ro2o": ["agent.draws=2"],
        "rambo": ["agent.clone_steps=4", "agent.world_steps=3", "agent.world_every=3"],
        "mobile": ["agent.samples=2", "agent.floor=null"],
    }
    assert run(f"algorithm={name}", *own.get(name, [])) == 0
    metrics = result(tmp_path)["metrics"]
    assert metrics["algorithm"] == name
    assert metrics["steps"] == 10
    assert metrics["world"]["kind"] == ("none" if offline_agent(name).imagining is None else "ensemble")


NEUBAY = ["algorithm=neubay", "agent.memory.width=8", "agent.memory.states=4", "recurrent.rows=40", "recurrent.rollouts=4",
          "recurrent.updates_per_step=0.05", "agent.critics=2"]  # fmt: skip


def test_agent_with_a_memory_trains_on_tapes_and_resumes(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    assert run(*NEUBAY) == 0
    whole = result(tmp_path)["metrics"]
    assert [entry["step"] for entry in whole["evaluations"]][-1] == 10
    assert whole["last"]["threshold"] > 0
    assert whole["evaluation"]["over_estimation"]["lo"] < whole["evaluation"]["over_estimation"]["hi"]
    (tmp_path / "run").rename(tmp_path / "whole")
    play = stop_at_second_score(monkeypatch)
    assert run(*NEUBAY) == cli.INTERRUPTED
    monkeypatch.setattr(offline_scores, "play", play)
    assert run(*NEUBAY) == 0
    assert result(tmp_path)["metrics"] == whole


def test_online_phase_follows_and_is_scored_beside_the_offline_agent(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refit, seen = online_world.refit_ensemble, []
    monkeypatch.setattr(
        online_world, "refit_ensemble", lambda name, *rest, **over: seen.append(name) or refit(name, *rest, **over)
    )
    short = ["online.steps=70", "online.warmup=60", "online.updates_per_step=1", "online.batch_size=8"]
    short += ["online.refit_every=6"]
    assert run("algorithm=cql", "world=ensemble", "planner.use=exploration", "planner.candidates=2", *short) == 0
    metrics = result(tmp_path)["metrics"]
    assert (metrics["online"]["steps"], metrics["online"]["episodes"], metrics["online"]["updates"]) == (70, 2, 10)
    assert seen == ["refit-0", "refit-6"]
    played = {"evaluations": 4, "episodes": 6, "steps": 180}
    assert metrics["budget"] == {**played, "online_steps": 70, "checked_steps": 0}
    assert metrics["online"]["scores"]["raw"] != metrics["scores"]["raw"]
    assert saved_algorithm(tmp_path / "run" / "agent") == "cql"
    assert saved_algorithm(tmp_path / "run" / "online") == "sac"


def test_stopped_online_phase_resumes_with_the_world_that_learnt_along(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refit, seen = online_world.refit_ensemble, []

    def stopping(name: str, *rest: Any, **over: Any) -> Any:
        seen.append(name)
        if seen.count("refit-24") == 2:  # the whole run has met it once
            monkeypatch.setattr(online_world, "refit_ensemble", noted)
            raise KeyboardInterrupt
        return refit(name, *rest, **over)

    def noted(name: str, *rest: Any, **over: Any) -> Any:
        seen.append(name)
        return refit(name, *rest, **over)

    monkeypatch.setattr(online_world, "refit_ensemble", stopping)
    words = ["algorithm=cql", "world=ensemble", "planner.use=exploration", "planner.candidates=2", "online.steps=70"]
    words += ["online.warmup=40", "online.updates_per_step=1", "online.batch_size=8", "online.refit_every=8"]
    words += ["online.checkpoint_every=20"]
    assert run(*words) == 0
    whole = result(tmp_path)["metrics"]
    (tmp_path / "run").rename(tmp_path / "whole")
    assert run(*words) == cli.INTERRUPTED
    seen.clear()
    assert run(*words) == 0
    assert seen == ["refit-24"]  # the checkpoint lies at step 60
    assert result(tmp_path)["metrics"] == whole


def test_planned_rollouts_and_what_the_critics_say_of_their_edge(run: Any, tmp_path: Path) -> None:
    assert run("planner.use=rollouts", "planner.candidates=2", "planner.horizon=1") == 0
    reach = result(tmp_path)["metrics"]["reach"]
    assert 0 <= reach["penalty_auroc"] <= 1
    assert reach["largest_uncertainty"] > 0  # a planner needs it measured


def test_papers_own_values_of_a_dataset_are_defaults() -> None:
    given = {"data": "x", "algorithm": "neubay", "tuned": "hopper-medium"}
    published = given | {"preset": "gpu", "device": "cpu"}
    composed: Any = [compose("train-offline", settings_for(words), words) for words in (given, published)]
    small, whole = composed
    agents: Any = (small.agent, whole.agent)
    assert [(agent.kappa, agent.temperature) for agent in agents] == [(0.8, 0.2)] * 2
    assert agents[1].encoder_rate == 1e-6  # for two million updates
    assert agents[0].encoder_rate > 10 * agents[1].encoder_rate
    assert (whole.ensemble.members, whole.agent.critics) == (128, 10)
    assert whole.recurrent == RecurrentConfig()
    assert small.training.steps < whole.training.steps


@pytest.mark.parametrize("algorithm", video_latents.AGENTS)
def test_settings_for_latents_are_those_that_were_measured(algorithm: str) -> None:
    """``reproduce offline-video`` in full and ``tuned=video-latents`` mean the same agents, worlds and views."""
    given = {"data": "x", "algorithm": algorithm, "tuned": "video-latents"}
    settings: Any = compose("train-offline", settings_for(given), given)
    measured = offline_video.SETTINGS["full"]
    facts = Facts(torch.zeros(3), torch.ones(3), 2)
    assert settings.agent == offline_video.make_agent(measured, algorithm, facts).config
    assert settings.world == "latent"
    assert (settings.keypoints, settings.components) == (measured.keypoints, measured.components)
    assert (settings.stride, settings.training.steps) == (measured.stride, measured.updates)
    if algorithm == "ravl":
        assert settings.training.batch_size == measured.batch
        assert settings.imagining == offline_video.imagining_of(measured)
    if algorithm == "neubay":
        packed_rows = settings.recurrent
        rollouts = measured.starts // 2
        assert (packed_rows.rows, packed_rows.rollouts) == (measured.batch, rollouts)
        assert packed_rows.updates_per_step == measured.refresh / (rollouts * 8)  # PickRedCube's limit in chunks
        assert packed_rows.kept == measured.generations * rollouts * 9


def test_guided_trajectories_feed_a_model_free_agent(run: Any, tmp_path: Path) -> None:
    assert run("algorithm=td3_bc", "world=diffusion", "imagining.horizon=8", "diffusion.guidance.coefficient=0.1") == 0
    assert result(tmp_path)["metrics"]["world"]["windows"] > 0


@pytest.fixture
def balanced() -> Trajectories:
    """Two episodes of the inverted pendulum with simulator states."""
    env, episodes = gymnasium.make("InvertedPendulum-v5", max_episode_steps=12), []
    inner: Any = env.unwrapped
    for seed in range(2):
        seen, draws = [env.reset(seed=seed)[0]], np.random.default_rng(seed)
        qpos, qvel, reward, over = [], [], [], False
        action = draws.uniform(-0.3, 0.3, (12, 1)).astype(np.float32)
        for told in action:
            qpos.append(inner.data.qpos.copy())
            qvel.append(inner.data.qvel.copy())
            obs, paid, over, _, _ = env.step(told)
            seen.append(obs)
            reward.append(paid)
            if over:
                break
        rows = (np.stack(seen).astype(np.float32), action[: len(reward)], np.array(reward, np.float32))
        episodes.append(VectorEpisode(*rows, bool(over), not over, qpos=np.stack(qpos), qvel=np.stack(qvel)))
    info = DatasetInfo("balanced", (-3.0,), (3.0,), env_id="InvertedPendulum-v5", max_episode_steps=12)
    return from_episodes(info, episodes)


def test_agent_learns_in_the_true_simulator(run: Any, tmp_path: Path, monkeypatch: Any, balanced: Trajectories) -> None:
    monkeypatch.setattr(offline_worlds, "open_trajectories", lambda name, **_: balanced)
    assert run("world=true", "algorithm=mopo") == 0
    metrics = result(tmp_path)["metrics"]
    assert metrics["world"]["kind"] == "true"
    imagined = read_metrics(tmp_path / "run")[0]["values"]
    assert imagined["imagination/uncertainty"] == 0  # so MOPO's penalty is none
    assert imagined["imagination/reward"] == pytest.approx(1.0)  # the task pays 1 a step while the pole stands
    assert 0 < metrics["scores"]["raw"]["value"] <= 12


@pytest.fixture
def latents(run: Any, tmp_path: Path, monkeypatch: Any, push_episodes: Any, world_model: Any) -> Callable[..., int]:
    """Run the command line on recorded episodes of one task, in a tiny video model."""

    def call(task: str, *tokens: str) -> int:
        episodes = [replace(episode, task=task) for episode in push_episodes]
        recorded = SimpleNamespace(load=lambda: episodes, image_size=(16, 16))
        monkeypatch.setattr(offline_worlds, "open_recorded", lambda *_: recorded)
        world_model.save(tmp_path / "video")
        return run("world=latent", f"world_model={tmp_path / 'video'}", *tokens)

    return call


RECURRENT = ("recurrent.rollouts=2", "recurrent.rows=8", "agent.memory.width=8", "agent.memory.states=4")


@pytest.mark.parametrize(
    ("algorithm", "tokens"), [("ravl", ("imagining.rollouts=4",)), ("neubay", (*RECURRENT, "training.steps=2"))]
)
def test_agent_of_latents_is_scored_in_the_simulator(
    algorithm: str, tokens: tuple[str, ...], latents: Any, tmp_path: Path
) -> None:
    chosen = (f"algorithm={algorithm}", "episodes=2", "video_episodes=1", *tokens)
    assert latents("PickRedCube", *chosen) == 0
    metrics = result(tmp_path)["metrics"]
    assert metrics["world"]["kind"] == "latent"
    raw, evaluation = metrics["scores"]["raw"], metrics["evaluation"]
    assert (evaluation["return"]["method"], evaluation["return"]["n"]) == ("wilson", 2)
    assert 0 <= raw["lo"] <= raw["value"] <= raw["hi"] <= 1
    assert raw["hi"] - raw["lo"] > 0.3  # of two episodes nobody knows more
    assert metrics["budget"]["episodes"] == 2 + len(metrics["evaluations"])
    assert metrics["budget"]["steps"] > 0


def test_agent_of_keypoints_resumes_where_it_stopped(latents: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Every session learns the encoder anew, and the same: a training that is cut in two ends as one that is not."""
    short = partial(
        offline_worlds.fit_keypoints, training=KeypointTraining(steps=20, batch=16, hidden=8, look_every=10)
    )
    monkeypatch.setattr(offline_worlds, "fit_keypoints", short)
    tokens = (
        "keypoints=2",
        "components=3",
        "stride=2",
        "algorithm=bc",
        "episodes=1",
        "training.steps=4",
        "training.evaluate_every=2",
    )
    assert latents("PickRedCube", *tokens) == 0
    whole = result(tmp_path)["metrics"]
    encoder = KeypointEncoder.load(tmp_path / "run" / "keypoints")
    agent = load_agent(tmp_path / "run" / "agent", offline_agent("bc"))
    assert agent.facts.action_size == ChunkBasis.load(tmp_path / "run" / "components").components == 3
    video: Any = open_world_model(tmp_path / "video", torch.device("cpu"))
    assert agent.facts.obs_size == encoder.points_size + 7 + video.embed(["lift"]).shape[1]
    (tmp_path / "run").rename(tmp_path / "whole")
    play = stop_at_second_score(monkeypatch)
    assert latents("PickRedCube", *tokens) == cli.INTERRUPTED
    monkeypatch.setattr(offline_scores, "play", play)
    assert latents("PickRedCube", *tokens) == 0
    assert result(tmp_path)["metrics"] == whole


@pytest.mark.parametrize("name", ["keypoints", "components"])
def test_keypoints_and_components_of_vectors_are_refused(run: Any, capsys: Any, name: str) -> None:
    assert run("world=none", "algorithm=bc", f"{name}=4") == 2
    assert f"{name}=4: vectors have no latents" in " ".join(capsys.readouterr().err.split())


def test_latents_of_tasks_that_cannot_be_played_are_refused(latents: Any, capsys: Any, tmp_path: Path) -> None:
    assert latents("push-red") == 2
    assert "holds 'push-red', which is no task of the embedded suite" in " ".join(capsys.readouterr().err.split())
    assert latents("push-red", "episodes=0", "video_episodes=0", "imagining.rollouts=4") == 0
    assert result(tmp_path)["metrics"]["scores"] == {}


def test_values_of_pseudo_rewards_are_not_held_against_returns(run: Any, tmp_path: Path) -> None:
    assert run("algorithm=recoil") == 0
    assert result(tmp_path)["metrics"]["evaluation"]["over_estimation"] is None


def test_run_without_evaluation_has_no_score(run: Any, tmp_path: Path) -> None:
    assert run("algorithm=bc", "episodes=0", "video_episodes=0") == 0
    metrics = result(tmp_path)["metrics"]
    assert (metrics["evaluation"], metrics["scores"], metrics["budget"]["episodes"]) == (None, {}, 0)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["algorithm=rvl"], "unknown algorithm 'rvl'; did you mean 'ravl'?"),
        (["algorithm=grpo"], "algorithm 'grpo' does not learn from a dataset of vectors"),
        (["agent.expectile=0.8"], "train-offline has no setting 'agent.expectile'"),
        (["algorithm=iql", "agent.expectil=0.8"], "did you mean 'agent.expectile'?"),
        (["algorithm=iql", "agent.expectile=high"], "agent.expectile must be float, got 'high'"),
        (["algorithm=iql", "agent.expectile=2"], "agent.expectile must be in (0, 1), got 2"),
        (["algorithm=mobile", "world=none"], "world: mobile asks the members of an ensemble"),
        (["algorithm=mobile"], "agent.floor=0 lies above every recorded return"),
        (["world=ensembl"], "did you mean 'ensemble'?"),
        (["algorithm=bc", "worlds=x"], "worlds=x: world=none has no ensemble to share"),
        (["worlds=/proc/nowhere"], "/proc/nowhere"),
        (["world=true"], "world=true: pendulum.hdf5 holds no simulator states"),
        (["algorithm=mopo", "world=none"], "imagining.penalty=0.5: world=none measures no uncertainty"),
        (["algorithm=mopo", "world=diffusion"], "imagining.penalty=0.5: world=diffusion measures no uncertainty"),
        (["algorithm=f_dvl", "agent.expectile=0.8"], "train-offline has no setting 'agent.expectile'"),
        (["algorithm=recoil", "agent.scale_reward=true"], "train-offline has no setting 'agent.scale_reward'"),
        (["algorithm=rambo", "agent.clone_steps=10"], "agent.clone_steps must be below training.steps=10"),
        (["algorithm=mopo", "uncertainty=none"], "uncertainty: unknown value 'none'"),
        (["termination=hoper"], "did you mean 'hopper'?"),
        (["rows=1000"], "has 90 rows"),
        (["termination=learned"], "0 of 90 rows are terminals"),
        (["algorithm=neubay", "imagining.horizon=3"], "imagining.horizon: recurrent.* are settings of neubay"),
        (["algorithm=neubay", "tuned=hopper-medum"], "did you mean 'hopper-medium'?"),
        (["tuned=video-latent"], "ravl has settings of video-latents alone; did you mean 'video-latents'?"),
        (["tuned=video-latents", "world=ensemble"], "tuned=video-latents: what learns in latents; give world=latent"),
        (["tuned=video-latents", "world=latent", "algorithm=cql"], "cql was not tuned there; choose bc, td3_bc, ravl"),
        (["algorithm=neubay", "world=none"], "world: neubay asks the members of an ensemble"),
        (
            ["algorithm=bc", "online.steps=9", "online.warmup=5"],
            "online.steps: bc needs more than the rows of its own episodes",
        ),
        (["online.steps=9"], "online.warmup must be at most online.steps=9"),
        (
            ["online.steps=6000", "online.resets=snapshots"],
            "online.resets=snapshots: pendulum.hdf5 holds no simulator states",
        ),
        (["planner.use=exploration"], "planner.use=exploration explores in the online phase; give online.steps=N"),
        (["algorithm=td3_bc", "world=ensemble", "planner.use=rollouts"], "td3_bc proposes one action"),
        (["algorithm=sac", "planner.use=rollouts"], "plans in an ensemble; give world=ensemble"),
    ],
)
def test_mistake_is_reported_in_one_line(
    run: Any, capsys: pytest.CaptureFixture[str], tokens: list[str], message: str
) -> None:
    assert run(*tokens) == cli.USER_ERROR
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", OFFLINE)
def test_every_algorithm_has_typed_settings_with_meanings(name: str) -> None:
    schema = settings_for({"algorithm": name})
    settings = compose("train-offline", schema, {"data": "x", "algorithm": name, "preset": "tiny"})
    assert type(settings.agent) is offline_agent(name).config_class
    rows = [row for row in describe(schema) if row.key.startswith("agent.")]
    assert [row.key for row in rows if not row.meaning] == []
    assert (settings.world != "none") == (offline_agent(name).imagining is not None or name == "neubay")


def test_defaults_follow_algorithm_and_world() -> None:
    def chosen(**given: str) -> Any:
        return compose("train-offline", settings_for(given), {"data": "x", **given})

    assert chosen().imagining.real_ratio == 0.05
    assert (chosen().ensemble.input_clip, chosen(algorithm="mbpo").ensemble.input_clip) == (10, 0)
    published = chosen(preset="gpu").ensemble_training
    assert (published.min_epochs, published.max_epochs, chosen().ensemble_training.min_epochs) == (350, 2000, 0)
    assert chosen(algorithm="ro2o").agent.weight_policy == 1.0
    assert chosen(algorithm="neubay").agent.initial_temperature == 0.2
    assert chosen(algorithm="combo").imagining.real_ratio == 0.5
    assert chosen(algorithm="mopo").imagining.penalty == 0.5
    assert chosen(**{"planner.use": "rollouts"}).uncertainty == "sample_std"
    assert chosen(**{"planner.use": "rollouts", "algorithm": "mopo"}).uncertainty == "max_sigma"
    guided = chosen(algorithm="iql", world="diffusion").imagining
    assert (guided.rollouts, guided.real_rows(256), guided.refresh_every) == (8192, 16, 10_000)


def test_trajectories_are_guided_and_the_published_size_learns_for_its_epochs() -> None:
    given = {"data": "x", "algorithm": "td3_bc", "world": "diffusion"}
    plan = compose("train-offline", settings_for(given), given).diffusion
    assert (plan.guidance.coefficient, plan.training.steps) == (GuidedSettings().guidance, 10_000)
    given["preset"] = "gpu"
    plan = compose("train-offline", settings_for(given), given).diffusion
    assert (plan.guidance.coefficient, plan.training.steps, plan.training.epochs) == (1.0, 0, 10_000)
    assert plan.model.features == 1024


def test_help_shows_the_chosen_algorithms_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train-offline", "algorithm=iql", "--help", "agent"]) == 0
    told = capsys.readouterr().out
    assert "agent.expectile" in told
    assert "agent.diversity" not in told
    assert "train-offline" in COMMANDS


def test_a_d4rl_file_names_the_rule_of_its_environment() -> None:
    info = DatasetInfo("hopper-medium-v2.hdf5", (-1.0,), (1.0,), dataset_id="hopper-medium-v2")
    assert offline_worlds.rule_of("auto", info) is RULES["hopper"]
    with pytest.raises(SettingError, match="give env=ID"):
        offline_worlds.rule_of("auto", replace(info, dataset_id="my-recording"))


def test_every_effect_with_a_stored_result_says_what_it_costs() -> None:
    for entry in CATALOGUE.values():
        stored = Path(__file__).parents[2] / "docs" / "results" / f"reproduce-{entry.name}-quick.json"
        assert not (stored.exists() and entry.cost == "not timed yet"), entry.name


def test_score_without_references_is_raw() -> None:
    info = DatasetInfo("x", (-1.0,), (1.0,))
    assert list(interval_scores({"mean": 3.0}, info)) == ["raw"]
    scaled = interval_scores(
        {"mean": 0.0, "lo": -1.0, "hi": 1.0}, DatasetInfo("x", (-1.0,), (1.0,), env_id="Hopper-v5")
    )
    assert scaled["d4rl"]["lo"] < scaled["d4rl"]["value"] < scaled["d4rl"]["hi"]


def test_plain_function_is_no_offline_agent() -> None:
    with pytest.raises(SettingError, match="behaviour_cloning"):
        offline_agent("behaviour_cloning")


@pytest.fixture
def swings(tmp_path: Path) -> Path:
    """A D4RL file of Pendulum, whose actions lie in [-2, 2]."""
    h5py = pytest.importorskip("h5py")
    draw = np.random.default_rng(0)
    columns = {
        "observations": draw.uniform(-1, 1, (90, 3)),
        "actions": np.linspace(-1.9, 1.9, 90)[:, None],
        "rewards": np.ones(90),
        "terminals": np.zeros(90, bool),
        "timeouts": np.arange(90) % 30 == 29,
    }
    with h5py.File(tmp_path / "swings.hdf5", "w") as file:
        for name, value in columns.items():
            file[name] = value
    return tmp_path / "swings.hdf5"


@pytest.mark.parametrize(
    ("tokens", "code", "said"),
    [
        ([], 2, "clip_actions=true"),
        (["clip_actions=true"], 0, "lay beyond their bounds and were clipped"),
        (["action_low=[-2]", "action_high=[2]"], 0, "all 87 rewards are 1"),
        (["env=Pendulum-v1"], 0, "all 87 rewards are 1"),
        (["env=Nowhere-v0"], 2, "clip_actions=true"),
        (["env=Pendulum-v1", "max_episode_steps=20"], 2, "episode 0 has 30 steps, more than the limit of 20"),
        (
            ["env=Pendulum-v1", "algorithm=mopo", "termination=hopper"],
            2,
            "the rule calls 83 others terminal and misses 0",
        ),
        (["world=latent", "clip_actions=true"], 2, "leave clip_actions out"),
    ],
)
def test_what_the_settings_say_of_a_d4rl_file(
    swings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tokens: list[str], code: int, said: str
) -> None:
    chosen = [] if "algorithm=mopo" in tokens else ["algorithm=bc"]
    common = ["train-offline", f"data={swings}", "preset=tiny", f"run_dir={tmp_path / 'run'}", "episodes=0"]
    assert cli.main([*common, "video_episodes=0", *chosen, *tokens]) == code
    assert said in " ".join(capsys.readouterr().err.split())
    if code == 0:
        checks = result(tmp_path)["metrics"]["data"]["checks"]
        assert checks["equal_rewards"] == 1
        assert ("actions_clipped" in checks) == ("clip_actions=true" in tokens)


def test_the_rule_of_the_environment_is_held_against_the_data(
    pendulum: Trajectories, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pendulum.transitions()
    told = replace(rows, terminated=rows.truncated, truncated=rows.terminated)
    with pytest.raises(SettingError, match=r"rule 'Pendulum-v1 \(auto\)' contradicts .* misses 3"):
        offline_worlds.held_rule("auto", pendulum, told)
    assert not offline_worlds.held_rule("never", pendulum, told)(rows.obs, rows.action, rows.next_obs).any()
    assert "termination=never: 3 of 90 rows are recorded as terminal" in capsys.readouterr().err
