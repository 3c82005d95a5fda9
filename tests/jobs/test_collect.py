import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, RunDirectoryError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.journal import read_journal
from worldrl.jobs.data.collect import CollectSettings, main, make_plans
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec, spec_of

SETTINGS = {
    "tasks": ["PickRedCube", "CloseDrawer"],
    "expert_episodes": 2,
    "noisy_episodes": 2,
    "wander_episodes": 4,
    "image_size": 16,
    "instruction_mode": "paraphrase",
    "styles": ["default", "dim"],
}
SCRIPT = """
import json, sys
from worldrl.jobs.data.collect import CollectSettings, main

if __name__ == "__main__":
    main(CollectSettings(**json.loads(sys.argv[1])))
"""


def contents(run_dir):
    """Digest of each episode's arrays and metadata, in order."""
    return [(spec_of(record.meta).key, record.content) for record in read_journal(run_dir / "dataset").records]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("collect") / "whole"
    metrics = main(CollectSettings(run_dir=str(run_dir), workers=0, envs_per_worker=2, **SETTINGS))
    return run_dir, metrics


def test_blind_episodes_of_pushes_and_drawers_are_labelled_near_misses(tmp_path):
    """At each step: what was never achieved is a failure throughout, and what was is printed from the step on."""
    settings = {"tasks": ["PushCubeToTarget", "OpenDrawer"], "expert_episodes": 0, "blind_episodes": 6}
    main(
        CollectSettings(
            run_dir=str(tmp_path), workers=0, envs_per_worker=2, image_size=16, goal_offset=0.025, **settings
        )
    )
    dataset = EpisodeDataset.open(tmp_path / "dataset")
    for task in settings["tasks"]:
        episodes = [episode for episode in dataset.load() if episode.task == task]
        outcomes = [bool((episode.reward > 0).any()) for episode in episodes]
        assert set(outcomes) == {True, False}, task
        assert outcomes == [record.success for record in dataset.records if record.task == task]
        assert {len(episode.reward) - len(episode.action) for episode in episodes} == {0}


def test_every_source_is_there_and_nothing_is_dropped(whole):
    run_dir, metrics = whole
    assert metrics["episodes"] == 16
    assert set(metrics["tasks"]) == {"PickRedCube", "CloseDrawer"}
    for sources in metrics["tasks"].values():
        assert {name: rate["n"] for name, rate in sources.items()} == {"expert": 2, "noisy_expert": 2, "wander": 4}
        assert sources["expert"]["k"] == 2
    records = read_journal(run_dir / "dataset").records
    assert {record.success for record in records} == {True, False}
    assert len({record.instruction for record in records}) > 2
    assert {record.meta["style"] for record in records} == {"default", "dim"}
    assert metrics["frames"] == sum(record.length + 1 for record in records)
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["command"], result["schema"], result["metrics"]) == ("collect", 1, metrics)


def test_datasets_hold_frames_of_fulfilled_tasks(tmp_path):
    specs = [EpisodeSpec("PickRedCube", 0, 1, source="expert")]
    plans, options = [CollectPlan(ExpertActor(), specs)], EnvOptions(image_size=16)
    lengths = [
        collect_dataset(tmp_path / str(hold), plans, EmbeddedPlayer(options, workers=0), hold_steps=hold)[0]["length"]
        for hold in (0, 6)
    ]
    assert lengths[1] == lengths[0] + 6


def test_a_collection_killed_again_and_again_equals_an_uninterrupted_one(whole, tmp_path):
    settings = {"run_dir": str(tmp_path / "killed"), "workers": 1, "envs_per_worker": 2, **SETTINGS}
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    journal = tmp_path / "killed" / "dataset" / "meta" / "worldrl.jsonl"

    def lines():
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    for target in (2, 6):  # the header, and so many episodes
        process = subprocess.Popen([sys.executable, script, json.dumps(settings)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while lines() < target and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed: give it more episodes"
    interrupted = lines()
    assert 6 <= interrupted < 17
    main(CollectSettings(**settings))
    assert contents(tmp_path / "killed") == contents(whole[0])


def test_another_plan_is_refused(whole, tmp_path):
    run_dir, _ = whole
    with pytest.raises(RunDirectoryError, match="another config"):
        main(CollectSettings(run_dir=str(run_dir), workers=0, envs_per_worker=2, seed=1, **SETTINGS))
    specs = [EpisodeSpec("PickRedCube", index, 1) for index in range(2)]
    folder, options = tmp_path / "data", EnvOptions(image_size=16, max_steps={"PickRedCube": 3})
    collect_dataset(folder, [CollectPlan(ExpertActor(), specs)], EmbeddedPlayer(options, workers=0))
    with pytest.raises(ArtefactError, match="holds 1 episodes that this collection does not plan"):
        collect_dataset(folder, [CollectPlan(ExpertActor(), specs[:1])], EmbeddedPlayer(options, workers=0))


def test_no_two_sources_share_an_initial_state(tmp_path):
    settings = CollectSettings(**{**SETTINGS, "expert_episodes": 5, "policy": "p", "policy_episodes": 5})
    keys = [spec.key for plan in make_plans(settings, settings.tasks, "cpu") for spec in plan.specs]
    assert len(keys) == len(set(keys)) == 2 * (5 + 2 + 4 + 5)
    assert not {key[3] for key in keys} & {settings.seed}


def test_imagined_rollouts_of_a_policy_in_a_world_model_are_executed_and_imagined_only_once(
    tmp_path, tiny_policy, make_world_model
):
    tiny_policy().save(tmp_path / "policy")
    make_world_model().save(tmp_path / "world")
    over = {"policy": str(tmp_path / "policy"), "world_model": str(tmp_path / "world"), "imagined_episodes": 2}
    settings = CollectSettings(
        str(tmp_path / "run"), workers=0, tasks=["PickRedCube"], expert_episodes=0, image_size=16, **over
    )
    metrics = main(settings)
    assert metrics["tasks"]["PickRedCube"]["dream"]["n"] == 2
    policy_rollouts = PolicyRollouts.load(tmp_path / "run" / "imagined_rollouts.npz")
    for episode, imagine_policy in zip(
        EpisodeDataset.open(tmp_path / "run" / "dataset").load(), policy_rollouts.action, strict=True
    ):
        np.testing.assert_array_equal(episode.action, imagine_policy[: len(episode)])
    before = (tmp_path / "run" / "imagined_rollouts.npz").stat().st_mtime_ns
    assert main(settings) == metrics
    assert (tmp_path / "run" / "imagined_rollouts.npz").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"workers": -1}, "workers"),
        ({"noise": -0.1}, "noise"),
        ({"policy": "p"}, "policy goes with policy_episodes or imagined_episodes"),
        ({"policy": "p", "imagined_episodes": 1}, "world_model and imagined_episodes go together"),
        ({"imagined_candidates": 2}, "imagined_candidates=2 has no effect without imagined_episodes"),
        ({"imagined_candidates": 0}, "imagined_candidates must be positive"),
        (
            {"policy": "p", "policy_episodes": 1, "world_model": "bundled"},
            "world_model and imagined_episodes go together",
        ),
        ({"temperature": -1.0}, "temperature must be positive, got -1.0"),
        ({"noise_correlation": 3.0}, "noise_correlation must be between 0 and 1, got 3.0"),
        ({"styles": []}, "styles"),
        ({"instruction_mode": "none"}, "instruction_mode"),
    ],
)
def test_impossible_settings_are_refused(changed, text):
    with pytest.raises(SettingError, match=text):
        CollectSettings(**changed)
