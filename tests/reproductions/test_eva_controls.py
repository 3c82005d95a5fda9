"""What alignment's cost buys without reinforcement learning: how long, and on which executed plans."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from worldrl.core.rng import stream_seed
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.recipes.motion.planned_execution import CollectionSettings
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.eva import controls as eva_controls
from worldrl.reproductions.eva import critic as eva_critic
from worldrl.reproductions.eva import reproduction as eva
from worldrl.reproductions.eva.controls import executed_successes, further_steps, rows_per_step, trained_on
from worldrl.reproductions.eva.parts import Parts
from worldrl.reproductions.eva.reproduction import SETTINGS
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.imagined.decoded_plans import commanded, execute_targets
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.embedded import embedded_embodiment, embedded_options
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EpisodeSpec, spec_of

TASK = "BimanualOpenDrawer"
SMALL = replace(SETTINGS["tiny"], executed_plans=3, image_size=16, hold_steps=2)
SOURCE = stream_seed(0, "practice") % 2**31


def test_controls_are_trained_for_what_alignment_costs():
    """2 iterations of 3 starts, 8 videos, 3 chunks, 4 steps: 144 (4 + 9) rows; a step has 10 windows, half with a chunk ahead."""
    sizes = {"iterations": 2, "prompts": 3, "chunks": 3, "denoising": 4, "batch": 10, "bootstrap": 0.5, "unroll": 2}
    settings = replace(SETTINGS["quick"], executed_plans=5, horizon=48, **sizes)
    assert rows_per_step(settings) == 10 * (3 + 0.5 * 4)
    assert further_steps(settings, "imitate") == round(144 * 13 / 50)
    assert further_steps(settings, "longer") == round((144 * 13 + 5 * 3 * 4) / 50)
    assert rows_per_step(replace(settings, unroll=3)) == 10 * (3 + 0.5 * 1.5 * 4)
    assert rows_per_step(replace(settings, unroll=1)) == 30


def test_a_control_continues_with_the_planners_training(monkeypatch, tmp_path):
    seen = {}

    def learn(folder, model, episodes, training, *, seed, log):
        seen[folder.parent.name] = ([*episodes], training, seed)

    monkeypatch.setattr(eva_controls, "learn_world_model", learn)
    monkeypatch.setattr(eva_controls, "executed_successes", lambda *given: ["executed"])
    parts = Parts(model=None, idm=None, learned=["shown"], kept=[], frame_s=0.1)
    costs = {m: trained_on(SMALL, Cell(m, 0), parts, tmp_path / m) for m in ("longer", "imitate")}
    assert {m: episodes for m, (episodes, *_) in seen.items()} == {
        "longer": ["shown"],
        "imitate": ["shown", "executed"],
    }
    for method, (_, training, _) in seen.items():
        assert training.codec_steps == 0
        assert training.steps == further_steps(SMALL, method) == costs[method]["further_steps"]
        assert training.learning_rate == SMALL.world_rate
        assert costs[method]["cost"] == pytest.approx(training.steps * rows_per_step(SMALL), abs=1)
    assert seen["longer"][2] != seen["imitate"][2] != 0  # windows of its own, not those of the first steps again
    assert [costs[m]["further_demonstrations"] for m in ("longer", "imitate")] == [0, 1]


@pytest.fixture(scope="module")
def aligned_plans(tmp_path_factory):
    """Three executed plans: the expert's own targets from the second initial state, and two that hold still."""
    folder = tmp_path_factory.mktemp("expert")
    plan = CollectPlan(ExpertActor(), [EpisodeSpec(TASK, 1, SOURCE)])
    collect_dataset(folder / "data", [plan], EmbeddedPlayer(embedded_options([TASK], 16), workers=0), hold_steps=8)
    (expert,) = EpisodeDataset.open(folder / "data").load()
    assert expert.success
    read = commanded(SMALL.stride, expert)
    still = torch.from_numpy(expert.command[:1]).expand_as(read)
    return CollectionSettings(
        torch.stack([still, read, still]), [TASK] * 3, ["open it"] * 3, np.array([False, True, False])
    ), expert


def test_plans_that_succeeded_become_demonstrations(aligned_plans, monkeypatch, tmp_path):
    tried, expert = aligned_plans
    monkeypatch.setattr(eva_critic, "collect_plans", lambda *given, **kept: tried)
    model = SimpleNamespace(frame_stride=SMALL.stride, embodiment=embedded_embodiment([TASK]))
    idm = SimpleNamespace(basis=SimpleNamespace(rewards={"moving_executability": None}))
    parts = Parts(model, idm, learned=[], kept=[], frame_s=0.2)
    (found,) = executed_successes(SMALL, 0, parts, tmp_path / "run/stages/one")
    assert found.success
    assert spec_of(found.meta).key == (TASK, 1, -1, SOURCE)
    assert np.array_equal(found.frames[0], expert.frames[0])
    assert found.meta["source"] == "executed plan"
    told = torch.from_numpy(expert.command[:1])
    (step,) = execute_targets(tried.read[1:2], told, SMALL.stride, TASK, [(1, SOURCE)], expert.actions)
    assert step == found.first_success  # as it was executed
    assert len(found) == step + SMALL.hold_steps
    nothing = replace(tried, success=np.zeros(3, bool))
    monkeypatch.setattr(eva_critic, "collect_plans", lambda *given, **kept: nothing)
    assert executed_successes(SMALL, 0, parts, tmp_path / "other/stages/one") == []


@pytest.mark.slow
def test_every_kind_of_arm_runs_with_practice(monkeypatch, tmp_path):
    """Outcomes are given, since a planner of two steps always fails; staged plans are as long as the critic's."""

    def collect_plans(planning, chunks, count, **over):
        read = torch.rand(count, chunks[TASK] * SETTINGS["tiny"].chunk // 4, 14)
        return CollectionSettings(read, [TASK] * count, ["open it"] * count, np.arange(count) % 2 == 0)

    monkeypatch.setattr(eva_critic, "collect_plans", collect_plans)
    settings = replace(
        SETTINGS["tiny"],
        executed_plans=40,
        kept=0.5,
        critic_steps=4,
        limits_weight=0.5,
        limits_margin=0.3,
        limit_plans=3,
    )
    arms = ("none", "longer", "imitate", "staged", "flow-grpo", "branch-grpo")
    folders = {arm: tmp_path / "run/stages" / arm for arm in arms}
    for folder in folders.values():
        folder.mkdir(parents=True)
    found = {arm: [eva.run(settings, Cell(arm, 0), folder)] for arm, folder in folders.items()}
    for arm, (one,) in found.items():
        assert one["critic"]["executed"] == 40
        assert {"reward", "foreseen_success"} == set(one["per_plan"])
        assert len(one.get("planned_violations", [])) == (0 if arm == "staged" else 3)
        assert len(one["motions"]) == one["episodes"]
        assert ("cost" in one) == (arm in ("longer", "imitate", "flow-grpo", "branch-grpo"))
    findings = eva.conclude(replace(settings, arms="+".join(arms)), found)
    assert findings.verdict in ("open", "not reproduced", "contrary")
