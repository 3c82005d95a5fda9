"""Parts and methods that do not go together are refused with the reason and what would; filtered cloning takes parts, too."""

from dataclasses import replace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.methods.rl.config import FilteredCloning, GrpoConfig, PartNames
from worldrl.methods.rl.filtered_cloning import load_selected, weight_of
from worldrl.methods.rl.imagination import PolicyImagination, imagined_env
from worldrl.methods.rl.improve import Improvement, improve
from worldrl.methods.rl.interfaces import Request, Trace
from worldrl.policies.exploration import Exploration
from worldrl.recipes.rl_parts import REGISTRIES, improvement_parts, lacks_of_alignment, open_parts
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore

ALONE = "several rollouts of one start"


def grpo(**parts):
    return Improvement("grpo", grpo=GrpoConfig(group_size=1, parts=PartNames(**parts)))


def test_a_baseline_of_a_group_is_refused_for_groups_of_one():
    with pytest.raises(
        SettingError, match=r"a group of one has no signal; give 2 or more, or improvement.grpo.parts.advantage"
    ):
        GrpoConfig(group_size=1)
    with pytest.raises(SettingError) as refused:
        improvement_parts(grpo(advantage="leave_one_out"))
    told = str(refused.value)
    assert told.startswith(f"improvement.grpo.parts.advantage=leave_one_out needs {ALONE}: ")
    assert "give improvement.grpo.group_size=2 or more, or improvement.grpo.parts.advantage=" in told
    fit = told.rpartition("=")[2].split("|")
    assert {"against_record", "single_rollout", "shrunk", "as_given"} <= set(fit)
    assert not {"group_std", "median", "anchored", "by_depth_of_nothing"} & set(fit)
    for name in fit:
        assert improvement_parts(grpo(advantage=name)).advantage is not None
    with pytest.raises(SettingError, match=r"parts.budget=knapsack needs several rollouts of one start"):
        improvement_parts(grpo(advantage="against_record", budget="knapsack"))


def test_credit_of_a_tree_is_refused_where_rollouts_share_nothing():
    two = Improvement("grpo", grpo=GrpoConfig(parts=PartNames(advantage="fork_relative")))
    with pytest.raises(
        SettingError, match=r"fork_relative needs rollouts that share their beginnings: rollouts of a policy"
    ):
        improvement_parts(two)
    fork = PartNames(advantage="fork_relative")
    assert open_parts(fork, "alignment.parts", lacks_of_alignment("branch_grpo")).advantage is not None
    with pytest.raises(SettingError, match=r"give method=branch_grpo, or alignment.parts.advantage="):
        open_parts(fork, "alignment.parts", lacks_of_alignment("flow_grpo"))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("advantage", "process_advantage"),
        ("advantage", "single_rollout"),
        ("selection", "advancing"),
        ("starts", "mopps"),
        ("budget", "hardness_weighted"),
        ("loss", "decoupled"),
        ("control", "verified"),
    ],
)
def test_what_needs_a_policy_s_rollouts_is_refused_for_videos(kind, name):
    named = replace(PartNames(), **{kind: name})
    with pytest.raises(SettingError, match=rf"alignment.parts.{kind}={name} needs .*: videos have rewards alone"):
        open_parts(named, "alignment.parts", lacks_of_alignment("flow_grpo"))


def test_an_unknown_part_gives_the_nearest():
    with pytest.raises(SettingError, match=r"leave_one_out"):
        open_parts(PartNames(advantage="leave_one_oud"), "parts")


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_part_is_described(kind):
    for name in REGISTRIES[kind].names():
        told = REGISTRIES[kind].get(name).__doc__
        assert "Equation: " in told
        assert "Paper: " in told


def test_rollouts_of_a_group_may_be_given_different_instructions(scripted_world, make_record, tiny_policy):
    """PS-GRPO: in turn those of their task; a task without any keeps its own, and the group stays one."""
    store = ResetStore([make_record(20), make_record(120, task="PickGreenCylinder")])
    env = imagined_env(
        scripted_world, store, SuccessRule(0.4, 2), rows=5, horizon={"PickRedCube": 4, "PickGreenCylinder": 4}
    )
    said = {"PickRedCube": ["take the cube", "grasp it"]}
    source = PolicyImagination(env, tiny_policy(), Exploration(), 0.0, 0, sentences=said)
    red, green = (
        [record.task for record in store.records].index(task) for task in ("PickRedCube", "PickGreenCylinder")
    )
    request = Request.make(0, torch.tensor([red, green]), torch.tensor([3, 2]))
    rollouts = source.imagine(request).rollouts
    own = store.records[green].instruction
    assert rollouts.instruction == ("take the cube", "grasp it", "take the cube", own, own)
    assert rollouts.group.tolist() == [0, 0, 0, 1, 1]
    plain = replace(source, sentences={}).imagine(request).rollouts
    assert set(plain.instruction[:3]) == {store.records[red].instruction}


# -- filtered cloning ------------------------------------------------------------------------------------------------------


def cloning(**over):
    return Improvement("self_training", self_training=FilteredCloning(**over))


def test_cloning_takes_neither_loss_nor_control():
    for kind in ("loss", "control"):
        with pytest.raises(SettingError, match=f"self_training.parts.{kind}=clipped: self_training imitates"):
            FilteredCloning(parts=PartNames(**{kind: "clipped"}))
    with pytest.raises(SettingError, match=f"self_training.parts.advantage=group_std needs {ALONE}"):
        improvement_parts(cloning(parts=PartNames(advantage="group_std")))
    assert improvement_parts(cloning(parts=PartNames(advantage="leave_one_out"))).advantage is not None
    assert improvement_parts(cloning(group_size=2, rows=4, parts=PartNames(advantage="group_std"))).advantage


def test_cloning_weighs_by_the_parts_that_it_is_given():
    wins, valid = torch.tensor([True, False, True, True]), torch.ones(2, 4, dtype=torch.bool)
    shown = torch.tensor([[0.1, 0.0, 0.6, 0.2], [0.9, 0.0, 0.5, 0.9]])
    trace = Trace(0, torch.tensor([0, 0, 1, 1]), valid, wins, probability=shown)
    parts = open_parts(PartNames(selection="advancing"), "parts")
    assert weight_of(trace, parts, torch.Generator()).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0]]
    parts = open_parts(PartNames(advantage="as_given", selection="advancing"), "parts")
    assert weight_of(trace, parts, torch.Generator()).tolist() == [[1, 0, 1, 1], [1, 0, 0, 1]]


def test_cloning_of_other_parts_wins_and_a_killed_one_knows_its_starts(
    scripted_world, make_record, tiny_policy, tmp_path, no_demonstrations
):
    named = PartNames("leave_one_out", "advancing", "mopps", "root_variance")
    clone = BehaviourCloning(
        steps=80, batch_size=32, warmup_steps=5, learning_rate=1e-2, shift_pixels=0, jitter=0.0, label_width=0.0
    )
    config = Improvement(
        p_keyframe=0,
        self_training=FilteredCloning(
            cycles=4,
            rollouts=96,
            rows=32,
            group_size=4,
            imagined_share=1.0,
            imagined_actions=True,
            cloning=clone,
            parts=named,
        ),
    )

    def run(folder, cycles):
        env = imagined_env(
            scripted_world,
            ResetStore([make_record(grey) for grey in (20, 60, 100, 140, 180, 200, 220, 240)]),
            SuccessRule(0.4, 2),
            rows=32,
            horizon={"PickRedCube": 4},
        )
        given = replace(config, self_training=replace(config.self_training, cycles=cycles))
        with MetricLog(folder, tracker=TrackerName.none) as log:
            return improve(
                tiny_policy(),
                env,
                given,
                demonstrations=no_demonstrations,
                paraphrases={},
                seed=0,
                folder=folder / "checkpoints",
                log=log,
                parts=improvement_parts(given),
            )

    whole = run(tmp_path / "whole", 4)
    assert sum(whole[:3]) / 3 < 0.5
    assert sum(whole[-3:]) / 3 > 0.8
    run(tmp_path / "cut", 1)
    assert run(tmp_path / "cut", 4) == whole
    starts, wins, count = load_selected(tmp_path / "whole" / "checkpoints" / "batch-00000").outcome
    assert len(starts) == 8
    assert sum(count) == 32
    assert sum(wins) == pytest.approx(32 * whole[0])
