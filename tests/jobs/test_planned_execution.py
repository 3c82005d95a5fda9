"""Practice for a critic of plans: states of its own, lengths of several tasks, and a share that it does not learn from."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.recipes.motion import plan_critic, planned_execution
from worldrl.recipes.motion.plan_critic import areas, learn_critic
from worldrl.recipes.motion.planned_execution import (
    CollectionSettings,
    Planning,
    collect_plans,
    decoded_plans,
    executed_plans,
    only_domain,
    states_seed,
)
from worldrl.rewards.execution_critic import CRITIC, ExecutionConfig, ExecutionCritic
from worldrl.rewards.mixing import mean_of_terms
from worldrl.rewards.motion.inverse_dynamics import read_once
from worldrl.rollout.imagined.staged_rollouts import StagedConfig

CONFIG = ExecutionConfig(members=2, hidden=16, text_width=4, steps=150, batch=32, learning_rate=5e-3)


def test_plans_of_all_tasks_are_one_practice(monkeypatch):
    """Two and three frames: the shorter plan holds its last targets, as its execution does."""
    asked = []

    def executed(planning, task, config, *, count, purpose, begin, domain):
        asked.append((task, count, purpose, config.proposals, config.stage_chunks, begin, domain))
        for first in range(0, count, 2):
            read = torch.arange(config.stage_chunks).float()[None, :, None].expand(2, -1, 7) + first
            records = [SimpleNamespace(task=task, instruction=f"do {task}")] * 2
            plans = SimpleNamespace(terms=torch.tensor([[first, 1.0], [first + 1, 2.0]]))
            yield SimpleNamespace(read=read, records=records, step=np.array([-1, first]), plans=plans)

    monkeypatch.setattr(planned_execution, "executed_plans", executed)
    planning = SimpleNamespace(reward=SimpleNamespace(names=("one", "two")))
    tried = collect_plans(planning, {"a": 2, "b": 3}, 4, domain="randomised")
    assert asked == [("a", 4, "practice", 1, 2, 0, "randomised"), ("b", 4, "practice", 1, 3, 0, "randomised")]
    assert tried.read[:, :, 0].tolist() == [[0, 1, 1]] * 2 + [[2, 3, 3]] * 2 + [[0, 1, 2]] * 2 + [[2, 3, 4]] * 2
    assert tried.task == ["a"] * 4 + ["b"] * 4
    assert tried.instruction == ["do a"] * 4 + ["do b"] * 4
    assert tried.success.tolist() == [False, True] * 4
    assert tried.terms["one"].tolist() == [0, 1, 2, 3] * 2
    assert tried.terms["two"].tolist() == [1, 2] * 4


class Reader:
    """Reads the mean colour of a frame into seven targets, and counts how often it is asked."""

    calls = 0

    def decode(self, frames):
        self.calls += 1
        mean = frames.float().mean(dim=(2, 3, 4))[..., None].expand(-1, -1, 7)
        return SimpleNamespace(mean=mean)


@pytest.fixture
def simulator(make_record, monkeypatch):
    """What the simulator is asked for; every state looks alike, and every other plan succeeds."""
    asked = {"starts": [], "executed": []}

    def starts(backend, tasks, count, *, seed, **look):
        asked["starts"].append((*tasks, count, seed, backend.domain))
        return [make_record(10) for _ in range(count)]

    def execute(read, told, stride, task, states, actions, domain):
        asked["executed"].append((task, states, domain))
        return np.arange(len(states)) % 2 - 1

    monkeypatch.setattr(planned_execution.EmbeddedBackend, "starts", starts)
    monkeypatch.setattr(planned_execution, "execute_targets", execute)
    return asked


@pytest.fixture
def planning(make_world_model):
    reward = SimpleNamespace(names=("one",), score=lambda videos: videos.latent.mean(dim=(1, 2, 3, 4))[:, None])
    return Planning(make_world_model(planning=True, spread=0.3), Reader(), reward, mean_of_terms, 5)


def test_states_and_noise_of_two_purposes_are_different_and_those_of_two_models_the_same(
    planning, simulator, make_world_model
):
    """Practice on the tests' own states, or with their noise, would teach the critic its own examination."""
    config, other = StagedConfig(stage_chunks=1, proposals=1), make_world_model(planning=True, spread=0.3, seed=1)

    def run(purpose, model=planning.model):
        [found] = executed_plans(replace(planning, model=model), "a", config, count=2, purpose=purpose)
        [(_, states, _)], [(_, _, seed, _)] = simulator["executed"], simulator["starts"]
        assert states == [(0, seed), (1, seed)]
        simulator["executed"].clear()
        simulator["starts"].clear()
        return seed, found.read

    (practice, read), (tests, others), (again, _) = run("practice"), run("tests"), run("practice", other)
    assert practice != tests
    assert practice == again == states_seed(5, "practice")
    assert not torch.equal(read, others)
    assert torch.equal(read, run("practice")[1])


def test_a_plan_is_read_once_for_its_reward_and_its_execution(planning, simulator):
    """Of several proposals the chosen ones are decoded again: of the network's other rows no last bit may depend."""

    def score(videos):
        return read_once(planning.idm, videos)[:, -1, :1]

    asking = replace(planning, reward=SimpleNamespace(names=("last",), score=score))
    for proposals, calls in ((1, 1), (3, 2)):
        planning.idm.calls = 0
        config = StagedConfig(stage_chunks=1, proposals=proposals)
        [found] = executed_plans(asking, "a", config, count=3, purpose="tests")
        assert planning.idm.calls == calls
        assert torch.equal(found.decoded, Reader().decode(found.plans.frames).mean)
        assert torch.equal(found.read, found.decoded[:, 1:])
        torch.testing.assert_close(found.plans.terms[:, 0], found.read[:, -1, 0])
    planning.idm.calls = 0
    apart = [*executed_plans(planning, "a", StagedConfig(stage_chunks=1, proposals=1), count=3, purpose="tests")]
    [again] = executed_plans(asking, "a", StagedConfig(stage_chunks=1, proposals=1), count=3, purpose="tests")
    assert torch.equal(apart[0].decoded, again.decoded)  # as where the reward reads nothing


def test_what_was_executed_before_a_stop_is_not_executed_again(planning, simulator, monkeypatch, tmp_path):
    """20 states of two tasks in batches of eight; stopped in the middle of the second task."""
    whole = collect_plans(planning, {"a": 1, "b": 2}, 20, place=tmp_path / "whole")
    assert len(simulator["executed"]) == 6
    execute = planned_execution.execute_targets

    class StopError(Exception):
        pass

    def stopping(*given):
        if len(simulator["executed"]) == 10:
            raise StopError
        return execute(*given)

    monkeypatch.setattr(planned_execution, "execute_targets", stopping)
    with pytest.raises(StopError):
        collect_plans(planning, {"a": 1, "b": 2}, 20, place=tmp_path / "cut")
    monkeypatch.setattr(planned_execution, "execute_targets", execute)
    fresh = []
    resumed = collect_plans(planning, {"a": 1, "b": 2}, 20, place=tmp_path / "cut", on_part=lambda: fresh.append(1))
    assert len(fresh) == 2  # what was found is not called made
    assert [(task, states[0][0]) for task, states, _ in simulator["executed"][10:]] == [("b", 8), ("b", 16)]
    again = collect_plans(planning, {"a": 1, "b": 2}, 20, place=tmp_path / "cut")
    assert len(simulator["executed"]) == 12
    for tried in (resumed, again):
        assert torch.equal(tried.read, whole.read)
        assert (tried.task, tried.instruction) == (whole.task, whole.instruction)
        assert tried.success.tolist() == whole.success.tolist()
        assert tried.terms["one"].tolist() == whole.terms["one"].tolist()
    assert len(whole.success) == 40


def test_the_data_says_in_which_domain_practice_is(planning, simulator):
    def data(*domains):
        metas = [{} if domain == "clean" else {"domain": domain} for domain in domains]
        return SimpleNamespace(records=[SimpleNamespace(meta=meta) for meta in metas])

    assert only_domain([data("clean"), data("clean")]) == "clean"
    assert only_domain([data("randomised")]) == "randomised"
    with pytest.raises(SettingError, match="clean and randomised; give one"):
        only_domain([data("clean"), data("randomised")])
    collect_plans(planning, {"a": 1}, 2, domain="randomised")
    assert simulator["starts"][0][3] == simulator["executed"][0][2] == "randomised"


def test_a_critic_is_measured_by_plans_that_it_has_not_learned_from(tmp_path, monkeypatch):
    draw, learned = np.random.default_rng(0), {}
    read = torch.from_numpy(draw.normal(size=(200, 4, 2)).astype(np.float32))
    success = read[:, -1, 0].numpy() > 0
    terms = {
        "knows": success.astype(np.float32),
        "opposite": -read[:, -1, 0].numpy(),
        "nothing": np.zeros(200, np.float32),
    }
    tried = CollectionSettings(read, ["a"] * 200, ["open it"] * 200, success, terms)
    fit = plan_critic.fit_execution

    def watched(config, read, *rest, **over):
        learned["read"] = read
        return fit(config, read, *rest, **over)

    monkeypatch.setattr(plan_critic, "fit_execution", watched)
    with MetricLog(tmp_path, TrackerName.none) as log:
        learn_critic(tried, CONFIG, 0.25, tmp_path, seed=0, log=log)
    said = read_json(tmp_path / "worth.json")
    assert said["learned"] == len(learned["read"]) == 150
    assert said["successes"] + said["failures"] == 50
    assert said["auroc"] > 0.9
    assert said["terms"] == said["terms_pooled"] == {"knows": 1, "opposite": 0, "nothing": 0.5}
    assert (said["pairs"], said["auroc_pooled"]) == (said["successes"] * said["failures"], said["auroc"])
    rows = {tuple(row.flatten().tolist()) for row in learned["read"]}
    assert len(rows) == 150
    assert ExecutionCritic.load(tmp_path / CRITIC).frames == 4


def test_a_reward_that_tells_tasks_apart_knows_nothing_of_plans():
    """An easy task and a hard one: their names alone put three pairs in four in order, and none within a task."""
    success = np.array([True] * 6 + [False] * 2 + [True] * 2 + [False] * 6)
    tried = CollectionSettings(torch.zeros(16, 1, 1), ["easy"] * 8 + ["hard"] * 8, ["do it"] * 16, success)
    name = np.repeat([1.0, 0.0], 8)
    found = areas(name, tried)
    assert (found["auroc"], found["pairs"]) == (0.5, 24)
    assert found["auroc_pooled"] == pytest.approx(0.75)
    assert areas(success - 2 * name, tried)["auroc"] == 1
    assert areas(success - 2 * name, tried)["auroc_pooled"] < 0.5


def test_plans_are_read_as_executed_ones_are_and_not_executed(planning, simulator):
    config = StagedConfig(stage_chunks=1, proposals=1)
    read = [*decoded_plans(planning, "a", config, count=10, purpose="tests")]
    assert simulator["executed"] == []
    executed = [*executed_plans(planning, "a", config, count=10, purpose="tests")]
    assert [len(each.step) for each in executed] == [8, 2]
    assert [states[0][0] for _, states, _ in simulator["executed"]] == [0, 8]
    for one, other in zip(read, executed, strict=True):
        assert torch.equal(one.decoded, other.decoded)


def test_plans_of_an_earlier_version_are_refused(tmp_path):
    tried = CollectionSettings(torch.rand(2, 4, 2), ["a"] * 2, ["open it"] * 2, np.array([True, False]))
    tried.save(tmp_path / "new.npz")
    assert CollectionSettings.load(tmp_path / "new.npz").task == ["a", "a"]
    with np.load(tmp_path / "new.npz") as kept:
        np.savez(tmp_path / "old.npz", **{name: kept[name] for name in kept.files if name != "task"})
    with pytest.raises(ArtefactError, match="without their tasks; give a new run_dir"):
        CollectionSettings.load(tmp_path / "old.npz")


def test_without_a_plan_kept_apart_its_worth_is_unknown(tmp_path):
    tried = CollectionSettings(torch.rand(8, 4, 2), ["a"] * 8, ["open it"] * 8, np.arange(8) % 2 == 0)
    with MetricLog(tmp_path, TrackerName.none) as log:
        learn_critic(tried, replace(CONFIG, steps=1), 0.0, tmp_path, seed=0, log=log)
    assert read_json(tmp_path / "worth.json") == {
        "learned": 8,
        "successes": 0,
        "failures": 0,
        "auroc": None,
        "auroc_pooled": None,
        "pairs": 0,
        "terms": {},
        "terms_pooled": {},
    }
