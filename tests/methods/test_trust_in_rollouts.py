"""How much imagined rollouts count: confidence scores, what they do, and inverse dynamics as one of them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import SettingError
from worldrl.core.rng import stream_seed
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.core.types import PolicyObs
from worldrl.methods.imitation.behaviour_cloning import Source, clone
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.methods.rl.config import FilteredCloning, GrpoConfig
from worldrl.methods.rl.filtered_cloning import imagined_waypoints, selected_samples
from worldrl.methods.rl.filtering import RolloutFilter, actions_of, imagined_again
from worldrl.methods.rl.grasp_uncertainty import GraspCheck, real_grasp_bound
from worldrl.methods.rl.imagination import imagine_batch, imagined_env
from worldrl.methods.rl.improve import ALGORITHMS, Improvement, improve
from worldrl.methods.rl.motion_uncertainty import MotionCheck, real_bound
from worldrl.methods.rl.trust import GraspUncertainty, MotionUncertainty, Trust
from worldrl.policies.exploration import Exploration, ExplorationSettings
from worldrl.policies.samples import Samples
from worldrl.rewards.config import GraspConfig, IdmConfig
from worldrl.rewards.grasp import Closings
from worldrl.rewards.motion.inverse_dynamics import Decoded
from worldrl.rewards.motion.readout import Column
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.imagined.rollouts import ImaginedRollouts, imagine_rollouts
from worldrl.rollout.trust.confidence import confidence_scores
from worldrl.rollout.trust.resampled import resample_rollouts

SETTINGS = {"keep_low": 0, "keep_high": 1, "group_size": 2}


class Seer:
    """Reads the grey of an image as the commanded x, with deviation 1."""

    columns = (Column("command", 0, "x"),)
    config = IdmConfig()
    frame_stride = 4

    def decode(self, frames):
        grey = frames.float().mean(dim=(2, 3, 4))[..., None]
        return Decoded(grey, torch.ones_like(grey))


def rollouts(tiny_policy, *, off):
    """Two chunks of four rollouts; ``off`` is how far frame and command are apart at frames 0, 1 and the end."""
    off = torch.tensor(off)  # [B, 3]
    image = torch.full((3, 4, 16, 16, 3), 7, dtype=torch.uint8)
    command = torch.zeros(3, 4, 7)
    command[..., 0] = 7 + off.T
    chunk = tiny_policy().act(
        PolicyObs(image[0], command[0], ["pick up"] * 4),
        generators=[torch.Generator().manual_seed(r) for r in range(4)],
    )
    return ImaginedRollouts(
        image=image[:2],
        command=command[:2],
        instruction=("pick up",) * 4,
        token=torch.stack(2 * [chunk.token]),
        logp=torch.stack(2 * [chunk.logp]),
        valid=torch.tensor([[True] * 4, [True, True, True, False]]),
        success=torch.tensor([True, True, False, True]),
        group=torch.tensor([0, 0, 1, 1]),
        task=("PickRedCube",) * 4,
        end=PolicyObs(image[2], command[2], ["pick up"] * 4),
    )


@pytest.fixture
def four(tiny_policy):
    """The second rollout's last frame is off by 4; the fourth's too, but it was over by then; first frames are real."""
    return rollouts(tiny_policy, off=[[9.0, 1.0, 0.5], [9.0, 0.0, 4.0], [0.0, 0.0, 0.0], [0.0, 2.0, 4.0]])


def believed(rollouts, use, **over):
    """Trust in each rollout where inverse dynamics weighs."""
    judge = RolloutFilter(Trust(confidence_score="motion_agreement", use=use, **over), MotionCheck(Seer(), 4.0))
    judged = judge.judge(None, rollouts, seed=0)
    assert judged.rollouts is rollouts
    assert judged.agreement is None
    return judged.trust


def test_the_worst_imagined_frame_decides(four):
    assert MotionCheck(Seer(), 4.0).normalised_error(four).T.tolist() == [[1, 0.25], [0, 16], [0, 0], [4, 0]]
    assert believed(four, "mask").tolist() == [1, 0, 0, 1]  # the third has failed
    assert believed(four, "weight").tolist() == [1, 0.25, 0, 1]
    assert believed(four, "weight", limit=1.0).tolist() == [1, 1 / 16, 0, 0.25]


def test_self_training_leaves_a_masked_success_out(four, tiny_policy):
    batch = selected_samples(four, tiny_policy(), believed(four, "mask"))
    # Kept chunks in order: rollouts 0, 1, 3 and then 0, 1; mates' successes 1, 1, 0.
    assert batch.weight.tolist() == [0, 0, 1, 0, 0]
    plain = selected_samples(four, tiny_policy())
    half = selected_samples(four, tiny_policy(), torch.full((4,), 0.5))
    torch.testing.assert_close(half.weight, 0.5 * plain.weight)


def test_grpo_rewards_what_is_shown(four, kept_chunks):
    config = GrpoConfig(**SETTINGS)
    plain, _ = kept_chunks(four, config)
    trusted, _ = kept_chunks(four, config, trust=torch.ones(4))
    torch.testing.assert_close(plain.advantage, trusted.advantage)
    assert len(plain) == 3  # the group that always succeeds teaches nothing
    masked, logs = kept_chunks(four, config, trust=believed(four, "mask"))
    assert len(masked) == 7  # now its false success teaches
    assert masked.advantage[:2].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-4)
    assert logs["grpo/imagined_success"] == 0.75


def test_agreement_is_a_reward_of_its_own_beside_success(tiny_policy, kept_chunks):
    """Groups of one success: trust as a factor never tells the failures apart, as a term it does, and is normalised by itself."""
    off = [[0.0, 1.0, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 4.0], [0.0, 2.0, 1.0]]
    plain = replace(rollouts(tiny_policy, off=off), group=torch.zeros(4, dtype=torch.int64))
    plain = replace(plain, success=torch.tensor([True, False, False, False]))
    judge = RolloutFilter(
        Trust(confidence_score="motion_agreement", use="term", weight=0.5), MotionCheck(Seer(), 100.0)
    )
    same, trust, agreement, *_ = judge.judge(None, plain, seed=0)
    assert same is plain
    assert trust is None
    assert agreement.tolist() == [
        -1,
        -1,
        -16,
        -4,
    ]  # below the bound, too; the fourth ended after its first chunk, which was 2 off
    batch, _ = kept_chunks(plain, GrpoConfig(**SETTINGS), agreement=agreement, term_weight=judge.term_weight)
    success = torch.tensor([1.0, 0, 0, 0])
    expected = sum(
        weight * (value - value.mean()) / (value.std() + 1e-6) for weight, value in ((1.0, success), (0.5, agreement))
    )
    assert batch.advantage.tolist() == pytest.approx(expected[[0, 1, 2, 3, 0, 1, 2]].tolist(), abs=1e-4)
    factor, _ = kept_chunks(plain, GrpoConfig(**SETTINGS), trust=agreement.exp())
    assert len(set(factor.advantage[1:4].tolist())) == 1
    assert len(set(batch.advantage[1:4].tolist())) == 3
    assert RolloutFilter(Trust(confidence_score="score")).term_weight == 0


def test_a_term_is_asked_for_where_there_is_one():
    assert (
        Trust(confidence_score="latent_agreement", use="term").limit is None
    )  # whose uncertainty is in no unit that a bound is known of
    for over, words in (
        ({"confidence_score": "motion_agreement", "limit": 1.0}, "has no effect with use=term"),
        ({"confidence_score": "score"}, "needs an uncertainty at every chunk"),
        ({"confidence_score": "grasp_agreement"}, "hands that never close"),
        ({"confidence_score": "motion_agreement", "weight": 0.0}, "weight must be positive"),
    ):
        with pytest.raises(SettingError, match=words):
            Trust(use="term", **over)
    term = Trust(confidence_score="motion_agreement", use="term")
    with pytest.raises(SettingError, match=r"give improvement\.algorithm=grpo"):
        Improvement("self_training", trust=term)
    assert Improvement("grpo", trust=term).trust.weight == 0.2


def test_real_episodes_set_the_bound(push_episode):
    class Offset(Seer):
        def decode(self, frames):
            n = frames.shape[1]
            return Decoded(0.48 + torch.arange(n).float().view(1, n, 1), torch.ones(1, n, 1))

    episodes = [push_episode(n, steps) for n, steps in ((0, 4), (1, 8), (2, 3))]
    # Frames 0 and 4, or 0, 4 and 8: about 1 and 2 off at the end; the third episode is shorter than a chunk.
    bound = real_bound(Offset(), episodes, chunk_length=4, share=1.0)
    assert bound == pytest.approx(4, rel=0.2)
    assert real_bound(Offset(), episodes, chunk_length=4, share=0.01) == pytest.approx(1, rel=0.2)
    with pytest.raises(SettingError, match="no held-out collected episode has 40 steps"):
        real_bound(Seer(), episodes, chunk_length=40, share=0.9)


def test_a_rollout_ends_before_the_chunk_that_passes_the_limit(four, tiny_policy, kept_chunks):
    judge = RolloutFilter(
        Trust(confidence_score="motion_agreement", use="shorten", limit=2.0), MotionCheck(Seer(), 4.0)
    )
    cut, trust, agreement, *_ = judge.judge(None, four, seed=0)
    assert trust is agreement is None
    assert cut.valid.T.tolist() == [[True, True], [True, False], [True, True], [False, False]]
    assert cut.success.tolist() == [True, False, False, False]
    lenient = RolloutFilter(Trust(confidence_score="motion_agreement", use="shorten"), MotionCheck(Seer(), 16.0))
    same = lenient.judge(None, four, seed=0).rollouts
    assert torch.equal(same.valid, four.valid)
    assert torch.equal(same.success, four.success)
    assert len(selected_samples(cut, tiny_policy()).samples) == 2  # both chunks of the one success that is left
    batch, _ = kept_chunks(cut, GrpoConfig(**SETTINGS))
    assert len(batch) == 3  # rollout 0's chunks and the first of rollout 1; the other group has no success left
    assert batch.advantage.tolist() == pytest.approx([0.5**0.5, -(0.5**0.5), 0.5**0.5], abs=1e-4)


# -- where the hand closes -------------------------------------------------------------------------------------------


class Palm:
    """Reads the grey of the first image as the commanded x of the closing, with deviation 1."""

    actions = TOOL_ACTIONS
    deviation = torch.ones(1)
    closes = frozenset({"pick up the red cube"})

    def read(self, frame, instruction):
        return frame.float().mean(dim=(1, 2, 3))[:, None]

    def normalised_error(self, frame, instruction, command):
        return (command[:, :1] - self.read(frame, instruction)).square().mean(dim=-1)


def grasping(rollouts, robot):
    """The four rollouts, of which the first two close in the second chunk, the third never and the fourth in the first.

    Chunks have four steps and x moves by the robot's scale; only the second is commanded far from what its image asks for.
    """
    action = torch.zeros(2, 4, 4, 7)
    action[..., 6] = -1
    action[1, :2, 1:, 6] = 1
    action[0, 3, 2:, 6] = 1
    command = rollouts.command.clone()
    command[..., :3] = torch.tensor([0.5, 0.0, 0.1])
    image = torch.zeros_like(rollouts.image)
    image[0, 1] = 2
    probability = torch.zeros(2, 4, 2)  # two frames in each chunk; successes are seen in the last one
    probability[1, :2, 1] = probability[0, 3, 1] = 1
    return replace(rollouts, action=action, command=command, image=image, probability=probability)


ONCE = SuccessRule(0.5, 1)


def test_the_chunk_of_the_last_closing_is_uncertain(four, robot):
    rollouts = grasping(four, robot)
    check = GraspCheck(Palm(), robot, 1.0, ONCE)
    expected = [[0, 0.25], [0, 2.25], [0, 0], [0.25, 0]]  # 0.5 commanded; 0 or 2 read
    assert check.normalised_error(rollouts).T.tolist() == pytest.approx([pytest.approx(row) for row in expected])
    trust = RolloutFilter(Trust(confidence_score="grasp_agreement"), check).judge(None, rollouts, seed=0).trust
    assert trust.tolist() == pytest.approx([1, 1 / 2.25, 0, 1])  # the third has failed
    assert RolloutFilter(Trust(confidence_score="grasp_agreement", use="mask"), check).judge(None, rollouts, seed=0).trust.tolist() == [1, 0, 0, 1]  # fmt: skip
    cut = (
        RolloutFilter(Trust(confidence_score="grasp_agreement", use="shorten"), check)
        .judge(None, rollouts, seed=0)
        .rollouts
    )
    assert cut.valid.T.tolist() == [[True, True], [True, False], [True, True], [True, False]]
    assert cut.success.tolist() == [True, False, False, True]
    with pytest.raises(SettingError, match="kept without their actions"):
        check.normalised_error(replace(rollouts, action=None))
    with pytest.raises(SettingError, match="or their probabilities"):
        check.normalised_error(replace(rollouts, probability=None))


def test_a_closing_behind_the_imagined_success_is_not_measured(four, robot):
    """Imagined rollouts are weighed up to it too (``grasp_error``): the first hand closes well, is seen to succeed, opens and closes far away."""
    rollouts = grasping(four, robot)
    action, image = torch.zeros(2, 4, 4, 7), rollouts.image.clone()
    action[..., 6] = -1
    action[0, 0, 2:, 6] = action[1, 0, 0, 6] = action[1, 0, 3, 6] = 1
    action[1, 0, 2, 0] = 50  # what is commanded last lies far away, at the end of the workspace
    probability = torch.zeros(2, 4, 2)
    probability[1, 0, 0] = probability[1, 1, 1] = probability[0, 3, 1] = 1
    rollouts = replace(rollouts, action=action, image=image, probability=probability)
    check = GraspCheck(Palm(), robot, 1.0, ONCE)
    assert check.normalised_error(rollouts)[:, 0].tolist() == [0.25, 0]
    late = replace(rollouts, probability=probability.roll(1, dims=2))
    assert check.normalised_error(late)[:, 0].tolist() == pytest.approx([0, robot.workspace_high[0] ** 2])


def test_an_imagined_pick_without_a_closing_is_not_counted(four, robot):
    rollouts = replace(grasping(four, robot), instruction=("pick up the red cube",) * 4)
    action, command = rollouts.action.clone(), rollouts.command.clone()
    action[:, 1:, :, 6] = command[..., 6] = -1
    rollouts = replace(rollouts, action=action, command=command)
    check = GraspCheck(Palm(), robot, 1.0, ONCE)
    inf = float("inf")
    assert check.normalised_error(rollouts)[:, 1:].T.tolist() == [
        [0, inf],
        [0, 0],
        [inf, 0],
    ]  # the third claims nothing
    for use in ("weight", "mask"):
        trust = (
            RolloutFilter(Trust(confidence_score="grasp_agreement", use=use), check).judge(None, rollouts, seed=0).trust
        )
        assert trust.tolist() == [1, 0, 0, 0]
    cut = (
        RolloutFilter(Trust(confidence_score="grasp_agreement", use="shorten"), check)
        .judge(None, rollouts, seed=0)
        .rollouts
    )
    assert cut.success.tolist() == [True, False, False, False]


def test_real_closings_set_the_bound_of_the_grasp():
    frame = torch.zeros(5, 16, 16, 3, dtype=torch.uint8)
    told = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]])
    kept = Closings(frame, told, ("pick up",) * 5, torch.ones(5, dtype=torch.bool), TOOL_ACTIONS)
    assert real_grasp_bound(Palm(), kept, 1.0) == 16
    assert real_grasp_bound(Palm(), kept, 0.5) == 4
    with pytest.raises(SettingError, match=r"grasp\.real_share"):
        GraspUncertainty(real_share=0)
    with pytest.raises(SettingError, match=r"grasp\.model\.steps"):
        GraspUncertainty(model=GraspConfig(steps=0))
    with pytest.raises(SettingError, match="needs an inverse dynamics model"):
        RolloutFilter(Trust(confidence_score="grasp_agreement"))


# -- further imaginations --------------------------------------------------------------------------------------------


@pytest.fixture
def joined_rollouts(world_model, make_record, tiny_policy):
    """An environment in which noise matters, and rollouts of unequal length in it."""
    records = [make_record(20 + 10 * k) for k in range(24)]
    env = imagined_env(world_model, ResetStore(records), SuccessRule(0.5, 1), rows=24, horizon={"PickRedCube": 12})
    rollouts = imagine_rollouts(env, tiny_policy(), records, group_size=1, seed=0, exploration=Exploration())
    score = rollouts.probability.amax(dim=(0, 2)).sort().values
    rule = SuccessRule(float(score[12]), 1)  # half of them succeed
    env = imagined_env(world_model, ResetStore(records), rule, rows=24, horizon={"PickRedCube": 12})
    rollouts = imagine_rollouts(env, tiny_policy(), records, group_size=1, seed=0, exploration=Exploration())
    assert 0 < int(rollouts.success.sum()) < 24
    assert int((~rollouts.valid).sum()) > 0
    return env, rollouts


@pytest.mark.parametrize("sign", ["score", "mean_resampled", "min_resampled"])
def test_scores_weigh_and_mask_successes(joined_rollouts, sign):
    env, rollouts = joined_rollouts
    rows = rollouts.success.nonzero().squeeze(1)
    starts = [env.records[int(row)] for row in rows]
    heard = resample_rollouts(env.world_model, starts, actions_of(rollouts, rows, env.actions), 3, seed=7)
    own = (rollouts.probability * rollouts.valid[..., None])[:, rows].transpose(0, 1).flatten(1).numpy()
    expected = torch.from_numpy(confidence_scores(own, heard, env.rule.debounce)[sign]).float()
    weight = RolloutFilter(Trust(confidence_score=sign, resampled_rollouts=3)).judge(env, rollouts, seed=7).trust
    assert torch.equal(weight[rows], expected)
    assert not weight[~rollouts.success].any()
    mask = (
        RolloutFilter(Trust(confidence_score=sign, use="mask", resampled_rollouts=3)).judge(env, rollouts, seed=7).trust
    )
    assert torch.equal(mask[rows], (expected >= env.rule.threshold).float())
    strict = (
        RolloutFilter(Trust(confidence_score=sign, use="mask", resampled_rollouts=3, limit=0.999))
        .judge(env, rollouts, seed=7)
        .trust
    )
    assert not strict.any()


def test_uncertainty_among_latents_weighs_and_shortens(joined_rollouts):
    env, rollouts = joined_rollouts
    everyone = torch.arange(24)
    heard = imagined_again(env, rollouts, everyone, 2, seed=7)
    uncertainty = torch.from_numpy(heard.spread).unflatten(1, (3, -1)).amax(dim=-1)  # [B, T]
    assert not uncertainty[~rollouts.valid.T].any()  # nothing is uncertain behind a success
    limit = float(uncertainty.amax(dim=1).median())
    weight = RolloutFilter(Trust(confidence_score="latent_agreement", limit=limit)).judge(env, rollouts, seed=7).trust
    rows = rollouts.success.nonzero().squeeze(1)
    alone = torch.from_numpy(imagined_again(env, rollouts, rows, 2, seed=7).spread).amax(dim=1)
    torch.testing.assert_close(weight[rows], (limit / alone).clamp_max(1))
    cut = (
        RolloutFilter(Trust(confidence_score="latent_agreement", use="shorten", limit=limit))
        .judge(env, rollouts, seed=7)
        .rollouts
    )
    passed = uncertainty > limit
    first = torch.where(passed.any(dim=1), passed.float().argmax(dim=1), 3)
    expected = rollouts.valid & (torch.arange(3)[:, None] < first)
    assert torch.equal(cut.valid, expected)
    assert torch.equal(cut.success, rollouts.success & ~passed.any(dim=1))
    assert 0 < int(passed.any(dim=1).sum()) < 24


def test_actions_hold_still_after_the_last_chunk(joined_rollouts, tiny_policy):
    env, rollouts = joined_rollouts
    policy = tiny_policy()
    decoded = policy.decode(rollouts.token)
    action = actions_of(rollouts, torch.arange(24), env.actions).unflatten(1, (len(rollouts.valid), -1))
    for row in range(24):
        chunks = int(rollouts.valid[:, row].sum())
        torch.testing.assert_close(action[row, :chunks], decoded[:chunks, row])
        assert not action[row, chunks:, :, :6].any()
        assert (action[row, chunks:, :, 6] == decoded[chunks - 1, row, -1, 6]).all()


# -- in both algorithms ----------------------------------------------------------------------------------------------


CLONING = BehaviourCloning(steps=3, batch_size=8, warmup_steps=1)


@pytest.fixture
def collect_plans(scripted_world, make_record, tiny_policy, no_demonstrations, tmp_path):
    """Improve a fresh policy in a world without noise; return it, its history and what was logged."""
    store = ResetStore([make_record(grey) for grey in (20, 120, 220)])

    def run(algorithm, judge=None, name="one"):
        config = Improvement(
            algorithm,
            exploration=ExplorationSettings(waypoint_noise=0.0),
            grpo=GrpoConfig(iterations=2, groups=4, group_size=4, minibatch=16),
            self_training=FilteredCloning(cycles=1, rollouts=32, rows=16, cloning=CLONING),
        )
        env = imagined_env(scripted_world, store, SuccessRule(0.4, 2), rows=16, horizon={"PickRedCube": 8})
        policy, folder = tiny_policy(), tmp_path / name
        common = {"demonstrations": no_demonstrations, "paraphrases": {}, "seed": 0, "folder": folder / "fit"}
        with MetricLog(folder, tracker=TrackerName.none) as log:
            history = improve(policy, env, config, log=log, judge=judge, **common)
        return policy, history, [line["values"] for line in read_metrics(folder) if line["series"] == "improve"]

    return run


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_further_resampled_rollouts_count_in_both(collect_plans, tiny_policy, algorithm):
    believing, history, _ = collect_plans(algorithm)
    doubting, same, logs = collect_plans(algorithm, RolloutFilter(Trust(confidence_score="mean_resampled")), "two")
    assert same[0] == history[0] > 0  # the first batch is imagined alike
    found = [values["grpo/trusted_success" if algorithm == "grpo" else "self_training/weight"] for values in logs]
    assert all(number > 0 for number in found)
    pairs = zip(believing.parameters(), doubting.parameters(), strict=True)
    assert any(not torch.equal(one, two) for one, two in pairs)
    nobody, _, logs = collect_plans(
        algorithm, RolloutFilter(Trust(confidence_score="score", use="mask", limit=2.0)), "three"
    )
    if algorithm == "grpo":  # nothing is rewarded, so nothing moves
        assert all(torch.equal(*pair) for pair in zip(nobody.parameters(), tiny_policy().parameters(), strict=True))
    else:
        assert all(values["self_training/weight"] == 0 < values["self_training/samples"] for values in logs)
    with pytest.raises(SettingError, match="needs an inverse dynamics model"):
        RolloutFilter(Trust(confidence_score="motion_agreement"))


def test_agreement_as_a_term_is_logged_as_such_and_teaches_by_its_weight(collect_plans):
    policies = []
    for weight in (0.2, 20.0):
        judge = RolloutFilter(
            Trust(confidence_score="motion_agreement", use="term", weight=weight), MotionCheck(Seer(), 4.0)
        )
        policy, _, logs = collect_plans("grpo", judge, f"weight-{weight}")
        assert all(values["grpo/agreement"] < 0 for values in logs)
        assert not any("grpo/trusted_success" in values for values in logs)
        policies.append(policy.parameters())
    assert any(not torch.equal(one, two) for one, two in zip(*policies, strict=True))


def test_without_a_sign_self_training_is_bit_for_bit_what_it_was(
    collect_plans, scripted_world, make_record, tiny_policy, no_demonstrations, tmp_path
):
    """Imagine, keep the successes, clone: written out by hand, with nothing that weighs them."""
    assert Improvement().trust.confidence_score == "off"
    policy, history, _ = collect_plans("self_training")
    store = ResetStore([make_record(grey) for grey in (20, 120, 220)])
    env = imagined_env(scripted_world, store, SuccessRule(0.4, 2), rows=16, horizon={"PickRedCube": 8})
    own = tiny_policy().eval()
    seeds = [stream_seed(0, "grow", k) for k in (0, 1)]
    imagined = [imagine_batch(env, own, Exploration(), group_size=1, p_keyframe=0.0, seed=seed) for seed in seeds]
    robot, deviation = scripted_world.embodiment, own.command_std
    grew = [selected_samples(r, own, waypoint=imagined_waypoints(r, robot, deviation)) for r in imagined]
    assert [batch.rate for batch in grew] == pytest.approx(history)
    samples, weight = Samples.join([b.samples for b in grew]), torch.cat([b.weight for b in grew])
    assert (weight == 1).all()
    samples = replace(samples, chunk=torch.full_like(samples.chunk, torch.nan))  # they teach waypoints alone
    sources = [Source(no_demonstrations, 8 - round(0.7 * 8)), Source(samples, round(0.7 * 8), weight)]
    with MetricLog(tmp_path / "own", tracker=TrackerName.none) as log:
        clone(
            own,
            sources,
            demonstrations=no_demonstrations,
            config=CLONING,
            seed=stream_seed(0, "improve", 0),
            folder=tmp_path / "own" / "fit",
            log=log,
            paraphrases={},
            series="own",
        )
    for one, two in zip(policy.parameters(), own.parameters(), strict=True):
        assert torch.equal(one, two)


def test_what_cannot_be_is_refused(four):
    for over, message in (
        ({"use": "masks"}, r"trust\.use: unknown 'masks'; did you mean 'mask'"),
        (
            {"confidence_score": "mean_resample"},
            r"trust\.confidence_score: unknown 'mean_resample'; did you mean 'mean_resampled'",
        ),
        ({"resampled_rollouts": 1}, "one has no spread"),
        ({"limit": 0.0}, r"trust\.limit must be positive"),
        ({"confidence_score": "latent_agreement"}, "needs a limit"),
        ({"confidence_score": "mean_resampled", "use": "shorten"}, "needs an uncertainty at every chunk"),
    ):
        with pytest.raises(SettingError, match=message):
            Trust(**over)
    with pytest.raises(SettingError, match=r"idm\.real_share"):
        MotionUncertainty(real_share=0.0)
    bare = ImaginedRollouts(**{name: getattr(four, name) for name in four.__dataclass_fields__ if name != "end"})
    with pytest.raises(SettingError, match="without their last frame"):
        MotionCheck(Seer(), 4.0).normalised_error(bare)
    for sign, lacking in (("score", "probabilities"), ("latent_agreement", "actions")):
        env = SimpleNamespace(records=[None] * 4, actions=None, rule=SuccessRule(0.5, 1), world_model=None)
        with pytest.raises(SettingError, match=f"without their {lacking}"):
            RolloutFilter(Trust(confidence_score=sign, limit=1.0, use="mask" if sign == "score" else "shorten")).judge(
                env, bare, seed=0
            )
