import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.statistics.intervals import wilson
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.core.types import PolicyObs
from worldrl.methods.imitation.behaviour_cloning import Source
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.methods.rl.advantages import leave_one_out
from worldrl.methods.rl.config import FilteredCloning, GrpoConfig
from worldrl.methods.rl.filtered_cloning import (
    SelectedSamples,
    imagined_waypoints,
    load_selected,
    save_selected,
    selected_samples,
    shared_out,
)
from worldrl.methods.rl.imagination import imagined_env
from worldrl.methods.rl.improve import ALGORITHMS, Improvement, improve, keyframe_probability
from worldrl.methods.rl.interfaces import Trace
from worldrl.methods.rl.selection import successes
from worldrl.policies.exploration import Exploration, ExplorationSettings
from worldrl.policies.samples import Samples
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.imagined.rollouts import ImaginedRollouts, imagine_rollouts

SCRIPT = Path(__file__).parent / "improve_script.py"
GRPO = GrpoConfig(
    iterations=25, checkpoint_every=25, groups=4, group_size=8, learning_rate=1e-2, keep_low=0, keep_high=1, epochs=2
)
CLONING = BehaviourCloning(
    steps=80, batch_size=32, warmup_steps=5, learning_rate=1e-2, shift_pixels=0, jitter=0.0, label_width=0.0
)
SELF_TRAINING = FilteredCloning(
    cycles=4, rollouts=96, rows=32, imagined_share=1.0, imagined_actions=True, cloning=CLONING
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("lasting", [0.0, 0.3])
def test_a_bandit_is_won(scripted_world, make_record, tiny_policy, tmp_path, no_demonstrations, algorithm, lasting):
    """Success is a high first action at the chunk's two frames: 4 of 25 by chance, all once it is learned."""
    store = ResetStore([make_record(grey) for grey in (20, 120, 220)])
    env = imagined_env(scripted_world, store, SuccessRule(0.4, 2), rows=32, horizon={"PickRedCube": 4})
    exploration = ExplorationSettings(noise_correlation=lasting)
    config = Improvement(algorithm, p_keyframe=0, exploration=exploration, grpo=GRPO, self_training=SELF_TRAINING)
    assert config.rows == 32
    with MetricLog(tmp_path, tracker=TrackerName.none) as log:
        history = improve(
            tiny_policy(),
            env,
            config,
            demonstrations=no_demonstrations,
            paraphrases={},
            seed=0,
            folder=tmp_path / "checkpoints",
            log=log,
        )
    assert sum(history[:3]) / 3 < 0.5
    assert sum(history[-3:]) / 3 > 0.9
    lines = [line["values"] for line in read_metrics(tmp_path) if line["series"] == "improve"]
    assert [values[f"{algorithm}/imagined_success"] for values in lines] == pytest.approx(history)


@pytest.mark.parametrize(("algorithm", "moments"), [("grpo", (4, 2)), ("self_training", (2, 4))])
def test_a_killed_improvement_resumes_bit_for_bit(run_python, tmp_path, algorithm, moments):
    """GRPO: killed in iteration 4 (checkpoint at 3), then in the third one of the next session, then left alone.

    Self-training: killed in batch 2 of cycle 0, then in batch 2 of cycle 1, after its policy was trained once.
    """
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, moment, code in ((whole, -1, 0), (cut, moments[0], -9), (cut, moments[1], -9), (cut, -1, 0)):
        folder.mkdir(exist_ok=True)
        ended = run_python(SCRIPT, algorithm, folder, moment, cwd=tmp_path)
        assert ended.returncode == code, ended.stderr
    history = json.loads((whole / "history.json").read_text())
    assert len(history) == {"grpo": 7, "self_training": 8}[algorithm]
    assert len(set(history)) > 1  # something was learned from
    assert json.loads((cut / "history.json").read_text()) == history
    weights = [(folder / "policy" / "model.safetensors").read_bytes() for folder in (whole, cut)]
    assert weights[0] == weights[1]
    lines = [[(x["series"], x["step"], x["values"]) for x in read_metrics(folder)] for folder in (whole, cut)]
    assert lines[0] == lines[1]
    name = {"grpo": "grpo/kept_rollouts", "self_training": "self_training/samples"}[algorithm]
    assert any(values.get(name, 0) > 0 for _, _, values in lines[0])


def test_only_successes_are_imitated_and_only_up_to_the_first(scripted_world, make_record, tiny_policy, tmp_path):
    store = ResetStore([make_record(grey) for grey in (20, 120, 220)])
    env = imagined_env(scripted_world, store, SuccessRule(0.4, 2), rows=24, horizon={"PickRedCube": 12})
    policy, starts = tiny_policy(), [make_record(20)] * 24
    rollouts = imagine_rollouts(env, policy, starts, group_size=1, seed=0, exploration=Exploration())
    batch = selected_samples(rollouts, policy)
    kept = batch.samples
    expected = [(int(t), int(b)) for t, b in rollouts.valid.nonzero() if rollouts.success[b]]
    assert 0 < len(expected) < int(rollouts.valid.sum())
    assert len(kept) == len(expected)
    for k, (t, b) in enumerate(expected):
        assert torch.equal(kept.image[k], rollouts.image[t, b])
        assert torch.equal(kept.command[k], rollouts.command[t, b])
        torch.testing.assert_close(kept.chunk[k], policy.decode(rollouts.token[t, b]))
        assert (kept.task[k], kept.instruction[k]) == (rollouts.task[b], rollouts.instruction[b])
    assert batch.weight.tolist() == [1.0] * len(kept)  # each alone in its group
    assert batch.rate == pytest.approx(rollouts.success.float().mean().item())
    for index in (torch.arange(len(kept)), torch.arange(0)):  # a batch without a success is kept too
        part = SelectedSamples(kept.select(index), batch.weight[index] / 4, 0.25)
        save_selected(tmp_path / "batch", part)
        again = load_selected(tmp_path / "batch")
        assert again.rate == 0.25
        assert torch.equal(again.weight, part.weight)
        assert again.samples.waypoint is None
        known = replace(part, samples=replace(part.samples, waypoint=part.samples.command))
        save_selected(tmp_path / "known", known)
        assert torch.equal(load_selected(tmp_path / "known").samples.waypoint, part.samples.command)
        for name in ("image", "command", "chunk"):
            assert torch.equal(getattr(again.samples, name), getattr(part.samples, name))
        assert (again.samples.instruction, again.samples.task) == (part.samples.instruction, part.samples.task)


def test_waypoints_of_a_success_follow_from_its_own_actions(robot):
    """Chunks of two steps, each moves 1 cm: the first rollout closes after three, the second never, the third fails."""
    action = torch.zeros(3, 3, 2, 7)
    action[..., 0], action[..., 6] = 0.01 / robot.step_m, -1
    action[1:, 0, 1:, 6] = action[2:, 0, :, 6] = 1
    command = torch.tensor([0.5, 0, 0.1, 0, 0, 0, -1]) + torch.zeros(3, 3, 7)
    command[..., 0] += torch.tensor([0, 0.02, 0.04])[:, None]
    valid = torch.tensor([[True, True, True], [True, True, True], [True, False, True]])
    rollouts = ImaginedRollouts(
        image=torch.zeros(3, 3, 8, 8, 3, dtype=torch.uint8),
        command=command,
        instruction=("pick up",) * 3,
        token=torch.zeros(3, 3, 2, 7, dtype=torch.int64),
        logp=torch.zeros(3, 3, 2, 7),
        valid=valid,
        success=torch.tensor([True, True, False]),
        group=torch.arange(3),
        task=("PickRedCube",) * 3,
        action=action,
    )
    found = imagined_waypoints(rollouts, robot, torch.ones(7))[..., 0]
    # The command after three steps is the last one that is open; from there on it is the end.
    torch.testing.assert_close(found[:, 0], torch.tensor([0.53, 0.53, 0.56]))
    torch.testing.assert_close(found[:2, 1], torch.tensor([0.54, 0.54]))
    assert found[2, 1].isnan()
    assert found[:, 2].isnan().all()
    # A measured pose that was seen elsewhere before the second chunk counts, not the sum of the actions.
    command[1, :, 0] = 0.6
    seen = imagined_waypoints(rollouts, robot, torch.ones(7))[..., 0]
    torch.testing.assert_close(seen[:, 0], torch.tensor([0.61, 0.61, 0.56]))


def test_a_success_counts_as_much_as_its_mates_fail():
    success = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1])
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3])
    trace = Trace(0, group, torch.ones(1, 13, dtype=torch.bool))
    (weight,) = successes(leave_one_out(success, trace), success, trace, torch.Generator())
    assert (weight[success == 0] == 0).all()  # failures teach nothing
    torch.testing.assert_close(weight[[0, 4, 8, 9, 12]], torch.tensor([1.0, 0.0, 2 / 3, 2 / 3, 1.0]))


def test_rollouts_of_one_start_share_it_and_their_weights_are_their_mates(scripted_world, make_record, tiny_policy):
    env = imagined_env(
        scripted_world, ResetStore([make_record(20)]), SuccessRule(0.4, 2), rows=24, horizon={"PickRedCube": 8}
    )
    policy, starts = tiny_policy(), [make_record(20 + 30 * k) for k in range(6)]
    rollouts = imagine_rollouts(env, policy, starts, group_size=4, seed=0, exploration=Exploration())
    batch = selected_samples(rollouts, policy)
    rate = rollouts.success.float().view(6, 4).mean(dim=1)
    expected = [1 - (4 * float(rate[b // 4]) - 1) / 3 for _, b in rollouts.valid.nonzero() if rollouts.success[b]]
    assert batch.weight.tolist() == pytest.approx(expected)
    assert len(set(batch.weight.tolist())) > 1


def test_samples_are_drawn_by_their_weight(no_demonstrations):
    source = Source(no_demonstrations, 4000, torch.tensor([0.0, 1.0, 3.0, 0.0]))
    marked = Samples(**{**vars(no_demonstrations), "command": torch.arange(4.0)[:, None].expand(4, 7)})
    drawn = Source(marked, source.rows, source.weight).draw(stream(0, "draw")).command[:, 0]
    assert set(drawn.tolist()) == {1.0, 2.0}
    assert (drawn == 2).float().mean().item() == pytest.approx(0.75, abs=0.03)


def test_without_an_imagined_success_the_demonstrations_are_all_there_is(
    scripted_world, make_record, tiny_policy, tmp_path, no_demonstrations
):
    env = imagined_env(
        scripted_world, ResetStore([make_record(20)]), SuccessRule(0.99, 2), rows=8, horizon={"PickRedCube": 4}
    )
    cloning = BehaviourCloning(steps=3, batch_size=8, warmup_steps=1)
    config = Improvement(p_keyframe=0, self_training=FilteredCloning(cycles=1, rollouts=8, rows=8, cloning=cloning))
    policy = tiny_policy()
    with torch.no_grad():  # the world asks for a first action of 1, and this policy's is -1
        policy.decoder[-1].bias.view(4, 7, 5)[:, 0, 0] += 100
    with MetricLog(tmp_path, tracker=TrackerName.none) as log:
        history = improve(
            policy,
            env,
            config,
            demonstrations=no_demonstrations,
            paraphrases={},
            seed=0,
            folder=tmp_path,
            log=log,
        )
    assert history == [0.0]


def test_collected_successes_are_cloned_beside_imagined_ones_or_alone(
    scripted_world, make_record, tiny_policy, tmp_path, no_demonstrations
):
    """Demonstrations ask for 0, the collected chunks for 1, and a share of all rows is theirs alone."""
    record, policy = make_record(20), tiny_policy()
    env = imagined_env(scripted_world, ResetStore([record]), SuccessRule(0.4, 2), rows=8, horizon={"PickRedCube": 4})
    collected = replace(no_demonstrations, chunk=torch.ones_like(no_demonstrations.chunk))
    only = FilteredCloning(rollouts=8, rows=8, imagined_share=0, collected_share=1, cloning=CLONING)
    assert only.batches == 0
    with MetricLog(tmp_path, tracker=TrackerName.none) as log:
        history = improve(
            policy,
            env,
            Improvement(self_training=only),
            demonstrations=no_demonstrations,
            collected=collected,
            paraphrases={},
            seed=0,
            folder=tmp_path,
            log=log,
        )
    assert history == []
    obs = PolicyObs(collected.image[:1], collected.command[:1], ["pick up"])
    assert policy.act(obs, generators=None).action.min() == 1


def test_each_batch_is_shared_out_among_demonstrations_collected_and_imagined(no_demonstrations):
    config = FilteredCloning(imagined_share=0.5, collected_share=0.3, cloning=replace(CLONING, batch_size=20))
    imagined = SelectedSamples(no_demonstrations, torch.ones(4), 1.0)
    shares = {"all": [6, 4, 10], "nothing imagined": [6, 14], "nothing collected": [10, 10]}
    found = {
        "all": shared_out(no_demonstrations, no_demonstrations, [imagined], config),
        "nothing imagined": shared_out(no_demonstrations, no_demonstrations, [], config),
        "nothing collected": shared_out(no_demonstrations, None, [imagined], config),
    }
    assert {name: sorted(source.rows for source in sources) for name, sources in found.items()} == {
        name: sorted(rows) for name, rows in shares.items()
    }
    assert all(sources[0].samples is no_demonstrations and sources[0].weight is None for sources in found.values())


def test_imagined_successes_teach_waypoints_alone_where_a_policy_has_one(no_demonstrations):
    """The actions of demonstrations stay, those of imagined rollouts are not imitated; their waypoints are."""
    config = FilteredCloning(cloning=CLONING)
    known = replace(no_demonstrations, waypoint=torch.ones(4, 7))
    demonstrations, imagined = shared_out(
        known, None, [SelectedSamples(known, torch.ones(4), 1.0)], config, actions=False
    )
    assert demonstrations.samples is known
    assert imagined.samples.chunk.isnan().all()
    torch.testing.assert_close(imagined.samples.waypoints, known.waypoints)
    assert config.teaches_actions(waypoint=False)
    assert not config.teaches_actions(waypoint=True)
    assert FilteredCloning(imagined_actions=True).teaches_actions(waypoint=True)
    with pytest.raises(SettingError, match="imagined_actions=false: this policy has no waypoint"):
        FilteredCloning(imagined_actions=False).teaches_actions(waypoint=False)


def test_both_is_self_training_first_and_grpo_from_then_on(tiny_policy, tmp_path, no_demonstrations):
    config = Improvement("both", grpo=GRPO, self_training=SELF_TRAINING)
    assert [config.of_round(number).algorithm for number in (1, 2, 3)] == ["self_training", "grpo", "grpo"]
    assert Improvement("grpo").of_round(1).algorithm == "grpo"
    assert [config.of_round(number).target_precision for number in (1, 2)] == [0.85, 0.7]  # a false success is imitated
    with pytest.raises(SettingError, match=r"algorithm=both: a round has one of the two; give config\.of_round"):
        improve(
            tiny_policy,
            None,
            config,
            demonstrations=no_demonstrations,
            paraphrases={},
            seed=0,
            folder=tmp_path,
            log=None,
        )


@pytest.mark.parametrize(
    ("make", "over"),
    [
        (Improvement, {"p_keyframe": 1.5}),
        (Improvement, {"algorithm": "another"}),
        (Improvement, {"keyframe_schedule": "often"}),
        (Improvement, {"starts_per_task": 0}),
        (GrpoConfig, {"iterations": 0}),
        (GrpoConfig, {"checkpoint_every": 0}),
        (FilteredCloning, {"cycles": 0}),
        (FilteredCloning, {"imagined_share": 0.7, "collected_share": 0.4}),
        (FilteredCloning, {"group_size": 3}),
    ],
)
def test_impossible_settings_are_refused(make, over):
    with pytest.raises(SettingError, match=next(iter(over))):
        make(**over)


def test_keyframes_are_started_from_as_often_as_they_are_trusted():
    fixed = Improvement(p_keyframe=0.4)
    scheduled = Improvement(p_keyframe=0.8, keyframe_schedule="hallucination")
    lies = {share: wilson(round(100 * (1 - share)), 100) for share in (0.0, 0.1, 0.3)}
    assert keyframe_probability(fixed, lies[0.3], lies[0.1]) == 0.4
    assert keyframe_probability(scheduled, lies[0.3], lies[0.1]) == pytest.approx(0.75)
    assert keyframe_probability(scheduled, lies[0.1], lies[0.3]) == pytest.approx(0.25)
    assert keyframe_probability(scheduled, lies[0.3], lies[0.0]) == 0.8  # never more than asked
    assert keyframe_probability(scheduled, lies[0.0], lies[0.3]) == 0
    assert keyframe_probability(scheduled, lies[0.0], lies[0.0]) == 0.5
    assert keyframe_probability(scheduled, lies[0.3], None) == pytest.approx(0.3 / 1.3)
