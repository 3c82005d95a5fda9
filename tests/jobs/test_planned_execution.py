"""Practice for a critic of plans: states of its own, lengths of several tasks, and a share that it does not learn from."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch

from worldrl.core.jsonfile import read_json
from worldrl.jobs import planned_execution
from worldrl.jobs.planned_execution import Practice, learn_critic, practise
from worldrl.rewards.execution_critic import CRITIC, ExecutionConfig, ExecutionCritic

CONFIG = ExecutionConfig(members=2, hidden=16, text_width=4, steps=150, batch=32, learning_rate=5e-3)


def test_plans_of_all_tasks_are_one_practice(monkeypatch):
    """Two and three frames: the shorter plan holds its last targets, as its execution does."""
    asked = []

    def executed(planning, task, config, *, count, purpose):
        asked.append((task, count, purpose, config.proposals, config.stage_chunks))
        for first in range(0, count, 2):
            read = torch.arange(config.stage_chunks).float()[None, :, None].expand(2, -1, 7) + first
            yield SimpleNamespace(
                read=read, records=[SimpleNamespace(instruction=task)] * 2, step=np.array([-1, first])
            )

    monkeypatch.setattr(planned_execution, "executed_plans", executed)
    tried = practise(None, {"a": 2, "b": 3}, 4)
    assert asked == [("a", 4, "practice", 1, 2), ("b", 4, "practice", 1, 3)]
    assert tried.read[:, :, 0].tolist() == [[0, 1, 1]] * 2 + [[2, 3, 3]] * 2 + [[0, 1, 2]] * 2 + [[2, 3, 4]] * 2
    assert tried.instruction == ["a"] * 4 + ["b"] * 4
    assert tried.success.tolist() == [False, True] * 4


def test_a_critic_is_judged_by_plans_that_it_has_not_learned_from(tmp_path, monkeypatch):
    draw, learned = np.random.default_rng(0), {}
    read = torch.from_numpy(draw.normal(size=(200, 4, 2)).astype(np.float32))
    tried = Practice(read, ["open it"] * 200, read[:, -1, 0].numpy() > 0)
    fit = planned_execution.fit_execution

    def watched(config, read, *rest, **over):
        learned["read"] = read
        return fit(config, read, *rest, **over)

    monkeypatch.setattr(planned_execution, "fit_execution", watched)
    learn_critic(tried, CONFIG, 0.25, tmp_path, seed=0)
    said = read_json(tmp_path / "worth.json")
    assert said["learned"] == len(learned["read"]) == 150
    assert said["successes"] + said["failures"] == 50
    assert said["auroc"] > 0.9
    rows = {tuple(row.flatten().tolist()) for row in learned["read"]}
    assert len(rows) == 150
    assert ExecutionCritic.load(tmp_path / CRITIC).frames == 4


def test_without_a_plan_kept_apart_its_worth_is_unknown(tmp_path):
    tried = Practice(torch.rand(8, 4, 2), ["open it"] * 8, np.arange(8) % 2 == 0)
    learn_critic(tried, replace(CONFIG, steps=1), 0.0, tmp_path, seed=0)
    assert read_json(tmp_path / "worth.json") == {"learned": 8, "successes": 0, "failures": 0, "auroc": None}
