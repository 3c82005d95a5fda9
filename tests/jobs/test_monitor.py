"""A monitor from command to command: fitted by collect, measured by evaluate, used by collect; and what is refused."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.data import collect
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.policy import evaluate
from worldrl.jobs.policy.evaluate import EvaluateSettings
from worldrl.methods.imitation.demonstrations import Demonstrations
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes import monitor as recipe
from worldrl.recipes.monitor import fit_monitor

TASKS, SMALL = ["CloseDrawer"], {"workers": 0, "envs_per_worker": 2}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A random policy that decides 16 steps at once: no success, four decisions an episode."""
    folder, ones = tmp_path_factory.mktemp("policies") / "random", torch.ones(7)
    config = TokenPolicyConfig(image_size=16, chunk_length=16, width=8, blocks=1, keypoints=2, hidden=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        TokenPolicy(config, PolicyStatistics(-ones, ones, 0 * ones, ones)).save(folder)
    return folder


@pytest.fixture(scope="module")
def fitted(policy, tmp_path_factory):
    """A monitor whose limit is of an expert's episode under another name: the random policy has no success."""
    run_dir = tmp_path_factory.mktemp("fit")
    collect.main(CollectSettings(run_dir=str(run_dir), tasks=TASKS, expert_episodes=2, image_size=16, **SMALL))
    given = CollectSettings(
        policy=str(policy), policy_episodes=1, expert_episodes=2, image_size=16, tasks=TASKS, false_alarms=0.5
    )
    first, second = EpisodeDataset.open(run_dir / "dataset")
    with pytest.raises(SettingError, match="needs 1 successful episodes of the policy, CloseDrawer has 0"):
        fit_monitor(given, [first, second], "cpu")
    with pytest.raises(SettingError, match="no episode of the expert"):
        fit_monitor(given, [replace(first, meta={**first.meta, "source": "policy"})], "cpu")
    monitor = fit_monitor(given, [first, replace(second, meta={**second.meta, "source": "policy"})], "cpu")
    monitor.save(run_dir / "monitor")
    return run_dir / "monitor"


def test_evaluate_measures_a_monitor(policy, fitted, tmp_path):
    settings = {"policy": str(policy), "tasks": TASKS, "episodes": 2, "videos": 0, **SMALL}
    metrics = evaluate.main(EvaluateSettings(run_dir=str(tmp_path / "e"), monitor=str(fitted), **settings))
    found = metrics["failure_detection"]
    assert found["alarms_at_failures"]["n"] == 2
    rows = [json.loads(line) for line in (tmp_path / "e" / "episodes.jsonl").read_text().splitlines()]
    assert [len(row["monitored"]["score"]) for row in rows] == [4, 4]
    plain = evaluate.main(EvaluateSettings(run_dir=str(tmp_path / "plain"), **settings))
    assert "failure_detection" not in plain
    assert plain["success"] == metrics["success"]


def test_collect_corrects_and_cloning_leaves_the_failing_part_out(policy, fitted, tmp_path):
    settings = CollectSettings(
        run_dir=str(tmp_path),
        policy=str(policy),
        policy_episodes=2,
        expert_episodes=0,
        monitor=str(fitted),
        intervene="expert",
        image_size=16,
        tasks=TASKS,
        **SMALL,
    )
    metrics = collect.main(settings)
    alarms = metrics["corrections"]["alarms"]
    assert alarms == metrics["corrections"]["corrected"]["k"] == 2
    episodes = EpisodeDataset.open(tmp_path / "dataset").load()
    assert len(episodes) == 2 * alarms
    cloned = Demonstrations.split(list(episodes), 0.0, 16, seed=0)
    assert cloned.counts["skipped_failures"] == alarms
    assert cloned.counts["episodes"] == alarms
    assert len(cloned.samples) == sum(len(one) for one in episodes if one.meta["part"] == "corrected")


POLICY = {"policy": "p", "policy_episodes": 1, "image_size": 16}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({**POLICY, "intervene": "expert"}, "go together"),
        ({**POLICY, "monitor": "m"}, "go together"),
        ({"intervene": "expert", "monitor": "m"}, "corrects policy_episodes"),
        ({**POLICY, "intervene": "people", "monitor": "m"}, "intervene"),
        ({**POLICY, "intervene": "expert", "monitor": "m", "suite": "libero_goal"}, "give suite=embedded"),
        ({**POLICY, "intervene": "expert", "monitor": "m", "planner": "cem"}, "give planner=none"),
        ({**POLICY, "intervene": "expert", "monitor": "m", "false_alarms": 0.1}, "give false_alarms or monitor"),
        ({"false_alarms": 0.1}, "expert_episodes and policy_episodes"),
        ({**POLICY, "expert_episodes": 0, "false_alarms": 0.1}, "expert_episodes and policy_episodes"),
        ({**POLICY, "suite": "libero_goal", "false_alarms": 0.1}, "expert_episodes and policy_episodes"),
        ({**POLICY, "planner": "cem", "false_alarms": 0.1}, "give planner=none"),
    ],
)
def test_what_does_not_go_together_is_refused_by_collect(given, text):
    with pytest.raises(SettingError, match=text):
        CollectSettings(**given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"suite": "libero_goal"}, "give suite=embedded"),
        ({"planner": "cem"}, "give planner=none"),
        ({"latency": 2}, "give latency=0"),
    ],
)
def test_what_does_not_go_together_is_refused_by_evaluate(given, text):
    with pytest.raises(SettingError, match=text):
        EvaluateSettings(policy="p", monitor="m", **given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"replan": 4}, "16 steps apart, here they are 4"),
        ({"temperature": 1.0}, "give temperature=null"),
        ({"tasks": ["OpenDrawer"]}, "not to OpenDrawer"),
    ],
)
def test_a_monitor_of_other_decisions_is_refused(policy, fitted, tmp_path, given, text):
    settings = {"tasks": TASKS, "episodes": 1, **SMALL, **given}
    with pytest.raises(SettingError, match=text):
        evaluate.main(
            EvaluateSettings(policy=str(policy), run_dir=str(tmp_path / "e"), monitor=str(fitted), **settings)
        )


def test_a_monitor_of_another_policy_is_refused(policy, fitted, tmp_path):
    other = TokenPolicy.load(policy)
    with torch.no_grad():
        next(other.parameters()).add_(1)
    other.save(tmp_path / "other")
    with pytest.raises(SettingError, match="another policy"):
        evaluate.main(
            EvaluateSettings(
                policy=str(tmp_path / "other"), run_dir=str(tmp_path / "e"), monitor=str(fitted), tasks=TASKS, **SMALL
            )
        )


def test_a_policy_without_embeddings_is_refused_before_anything_is_recorded(monkeypatch):
    monkeypatch.setattr(recipe, "policy_facts", lambda _: SimpleNamespace(kind="act"))
    settings = CollectSettings(**POLICY, false_alarms=0.5, tasks=TASKS)
    with pytest.raises(SettingError, match="of kind act, which shows no embeddings"):
        recipe.check_fit(settings, TASKS)
