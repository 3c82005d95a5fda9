"""Imagined rollouts: imagined to the horizon, written, executed in the real simulator, and confirmed."""

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.types import Chunk, Episode
from worldrl.policies.exploration import Exploration
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.actors import ExpertActor, ImaginedPlanActor
from worldrl.rollout.imagined.policy_rollouts import (
    PolicyRollouts,
    confirmed_by_execution,
    execute,
    imagine_from_keyframes,
    imagine_policy,
    imagine_policy_rows,
    join_rollouts,
    most_probable,
)
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec, spec_of

TASK, SEED = "PickRedCube", 7


def make_dreams(action, probability=None, **over):
    rows = len(action)
    probability = np.zeros((rows, 4), np.float32) if probability is None else np.asarray(probability, np.float32)
    fields = {"task": (TASK,) * rows, "index": np.arange(rows), "seed": np.full(rows, SEED), "frame_stride": 2} | over
    return PolicyRollouts(action=np.asarray(action, np.float32), probability=probability, **fields)


@pytest.fixture(scope="module")
def expert_episodes() -> list[Episode]:
    specs = [EpisodeSpec(TASK, index, SEED, source="expert") for index in range(2)]
    return [
        e for e in EmbeddedPlayer(EnvOptions(image_size=16), workers=0).play([(spec, ExpertActor()) for spec in specs])
        if isinstance(e, Episode)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def expert_dreams(expert_episodes) -> PolicyRollouts:
    """Imagined rollouts in which the policy did what the expert did; the shorter one waits at its end."""
    length = max(map(len, expert_episodes))
    action = np.zeros((2, length, 7), np.float32)
    for row, episode in enumerate(expert_episodes):
        action[row, :, 6] = 1
        action[row, : len(episode)] = episode.action
    return make_dreams(action)


class Drift:
    """Moves to the right, which half convinces the scripted world; its draw tells the gripper. Keeps what it was shown."""

    chunk_length, actions, more, n_obs_steps = 4, TOOL_ACTIONS, (), 1

    def __init__(self):
        self.shown = []

    def act(self, obs, *, generators, temperature=1.0, correlated_noise=None):
        self.shown.append(obs)
        action = torch.zeros(len(obs.instruction), 4, 7)
        action[:, :, 0] = 0.5
        action[:, :, 6] = torch.stack([torch.rand((), generator=g) for g in generators])[:, None]
        return Chunk(action, action.long(), action)


def test_executed_imagined_rollouts_are_real_episodes_of_the_same_actions(expert_dreams, expert_episodes, tmp_path):
    expert_dreams.save(tmp_path / "imagined_rollouts.npz")
    actor = ImaginedPlanActor(str(tmp_path / "imagined_rollouts.npz"))
    options = EnvOptions(image_size=16)
    executed = list(EmbeddedPlayer(options, workers=0).play([(spec, actor) for spec in expert_dreams.specs("dream")]))
    for episode, expert in zip(executed, expert_episodes, strict=True):
        assert isinstance(episode, Episode)
        assert episode.meta["source"] == "dream"
        np.testing.assert_array_equal(episode.frames, expert.frames)
        np.testing.assert_array_equal(episode.action, expert.action)
    assert execute(expert_dreams).tolist() == [e.first_success for e in expert_episodes]
    stranger = EpisodeSpec(TASK, 9, SEED)
    with pytest.raises(
        SettingError, match=r"imagined_rollouts\.npz: holds nothing of PickRedCube episode index 9, seed 7"
    ):
        list(EmbeddedPlayer(options, workers=0).play([(stranger, actor)]))


def test_an_imagined_rollout_that_is_over_holds_still(tmp_path, expert_episodes):
    approach = expert_episodes[0].action[None, :6]
    make_dreams(approach, np.zeros((1, 3))).save(tmp_path / "imagined_rollouts.npz")
    specs = [EpisodeSpec(TASK, 0, SEED)]
    options = EnvOptions(image_size=16, max_steps={TASK: 12})
    (episode,) = EmbeddedPlayer(options, workers=0).play(
        [(spec, ImaginedPlanActor(str(tmp_path / "imagined_rollouts.npz"))) for spec in specs]
    )
    assert isinstance(episode, Episode)
    np.testing.assert_array_equal(episode.action[:6], approach[0])
    assert (episode.action[6:] == [0, 0, 0, 0, 0, 0, approach[0, -1, 6]]).all()


def test_saved_imagined_rollouts_come_back_and_anything_else_is_an_error(tmp_path):
    policy_rollouts = make_dreams(np.random.default_rng(0).uniform(-1, 1, (3, 8, 7)), np.eye(3, 4))
    policy_rollouts.save(tmp_path / "imagined_rollouts.npz")
    again = PolicyRollouts.load(tmp_path / "imagined_rollouts.npz")
    assert (again.task, again.frame_stride) == (policy_rollouts.task, policy_rollouts.frame_stride)
    for name in ("index", "seed", "action", "probability"):
        np.testing.assert_array_equal(getattr(again, name), getattr(policy_rollouts, name))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "imagined_rollouts.npz").read_bytes()[:-40])
    (tmp_path / "text.npz").write_text("no dreams")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for name in ("cut", "text", "other", "missing"):
        with pytest.raises(ArtefactError, match=rf"{name}\.npz: cannot be read as imagined rollouts"):
            PolicyRollouts.load(tmp_path / f"{name}.npz")


def test_imagined_success_is_the_debounced_one():
    rows = [[0.9, 0.1, 0.9, 0.9], [0.9, 0.9, 0, 0], [0.9, 0, 0.9, 0]]
    assert make_dreams(np.zeros((3, 8, 7)), rows).success_step(SuccessRule(0.5, 2)).tolist() == [8, 4, -1]


def test_an_imagined_rollout_is_confirmed_in_time_or_not():
    imagined = np.array([20, 20, 20, -1, -1])
    real = np.array([28, 29, -1, 60, -1])
    assert confirmed_by_execution(imagined, real).tolist() == [True, False, False, True, False]


def test_imagined_rollouts_run_to_the_horizon_and_rows_do_not_depend_on_their_neighbours(scripted_world, make_record):
    policy = Drift()
    starts = [make_record(number) for number in range(3)]
    action, probability = imagine_policy_rows(
        scripted_world, policy, starts, 12, seed=3, exploration=Exploration(noise_correlation=0.0)
    )
    assert action.shape == (3, 12, 7)
    frames = 12 // scripted_world.frame_stride
    assert probability.shape == (3, frames)
    assert len(policy.shown) == 3
    assert not torch.equal(policy.shown[1].image, policy.shown[0].image)  # it acts on the model's images
    alone, _ = imagine_policy_rows(
        scripted_world, Drift(), starts[:1], 12, seed=3, exploration=Exploration(noise_correlation=0.0)
    )
    np.testing.assert_array_equal(alone[0], action[0])
    other, _ = imagine_policy_rows(
        scripted_world, Drift(), starts, 12, seed=4, exploration=Exploration(noise_correlation=0.0)
    )
    assert not np.array_equal(other, action)


def test_beyond_a_tasks_horizon_an_imagined_rollout_is_over(scripted_world):
    horizon = {"PickRedCube": 6, "PickYellowBrick": 8}
    policy_rollouts = imagine_policy(
        scripted_world, Drift(), list(horizon), 2, seed=1, horizon=horizon, image_size=16, exploration=Exploration()
    )
    assert policy_rollouts.task == ("PickRedCube",) * 2 + ("PickYellowBrick",) * 2
    assert policy_rollouts.index.tolist() == [0, 1, 0, 1]
    assert policy_rollouts.action.shape == (4, 8, 7)
    assert (policy_rollouts.action[:2, 6:, :6] == 0).all()
    assert (policy_rollouts.action[:2, 6:, 6] == policy_rollouts.action[:2, 5:6, 6]).all()
    assert (policy_rollouts.action[2:, :, 0] == 0.5).all()
    assert policy_rollouts.probability.tolist() == [[0.5, 0.5, 0.5, 0.0]] * 2 + [[0.5] * 4] * 2


def test_a_task_is_not_imagined_to_the_horizon_of_another(scripted_world):
    policy, length = Drift(), scripted_world.chunk_length
    horizon = {"PickRedCube": length, "PickYellowBrick": 3 * length}
    found = imagine_policy(
        scripted_world, policy, list(horizon), 2, seed=1, horizon=horizon, image_size=16, exploration=Exploration()
    )
    assert len(policy.shown) == 1 + 3
    assert found.action.shape == (4, 3 * length, 7)
    assert found.probability.shape == (4, 3 * length // scripted_world.frame_stride)
    assert (found.action[:2, length:, :6] == 0).all()
    assert (found.probability[:2, length // scripted_world.frame_stride :] == 0).all()


def test_of_several_rollouts_the_most_probable_success_within_the_time_limit_is_kept():
    def rollouts(*probability: list[float]):
        return np.full((len(probability), 4, 7), probability[0][0], np.float32), np.array(probability, np.float32)

    tried = [
        rollouts([0.1, 0.2, 0.2, 0.0], [0.5, 0.5, 0.0, 0.0]),
        rollouts([0.1, 0.9, 0.1, 0.1], [0.4, 0.4, 0.4, 0.4]),  # one frame of 0.9 is none of two
        rollouts([0.2, 0.2, 0.9, 0.9], [0.5, 0.5, 0.5, 0.5]),  # after three frames the time is over
    ]
    action, probability = most_probable(tried, 3, debounce=2)
    assert action[:, 0, 0].tolist() == [np.float32(0.1), np.float32(0.1)]  # equal to the third, and before it
    np.testing.assert_array_equal(probability, [tried[0][1][0], tried[0][1][1]])
    assert most_probable(tried, 4, debounce=2)[0][0, 0, 0] == np.float32(0.2)
    np.testing.assert_array_equal(most_probable(tried, 3, debounce=1)[1][0], tried[1][1][0])


def test_one_candidate_is_the_rollout_itself_and_of_more_the_best_is_kept(scripted_world):
    class Chance(Drift):
        """Convinces the scripted world as far as its draw says."""

        def act(self, obs, **given):
            chunk = super().act(obs, **given)
            chunk.action[:, :, 0] = chunk.action[:, :, 6]
            return chunk

    def imagined(policy, **more):
        asked = {"seed": 1, "horizon": {TASK: 8}, "image_size": 16, "exploration": Exploration()}
        return imagine_policy(scripted_world, policy, [TASK], 3, **asked, **more)

    plain, one, policy = imagined(Chance()), imagined(Chance(), candidates=1), Chance()
    np.testing.assert_array_equal(plain.action, one.action)
    best = imagined(policy, candidates=4)
    assert len(policy.shown) == 4 * 2  # chunks
    assert best.index.tolist() == [0, 1, 2]
    gain = best.probability.max(axis=1) - plain.probability.max(axis=1)
    assert (gain >= 0).all()
    assert (gain > 0).any()
    np.testing.assert_allclose(
        best.action[:, ::2, 0], best.probability, rtol=1e-6
    )  # actions and outcome of one rollout


def test_a_recorded_episode_is_continued_in_imagination_from_one_of_its_frames(scripted_world, expert_episodes):
    episode, other = expert_episodes
    horizon = {TASK: len(episode) + 6}
    starts = [(episode, 7), (other, 2)]
    policy_rollouts = imagine_from_keyframes(
        scripted_world, Drift(), starts, seed=1, horizon=horizon, exploration=Exploration()
    )
    assert policy_rollouts.action.shape == (2, horizon[TASK], 7)
    np.testing.assert_array_equal(policy_rollouts.action[0, :6], episode.action[:6])  # 7 is no model frame, 6 is
    np.testing.assert_array_equal(policy_rollouts.action[1, :2], other.action[:2])
    assert (policy_rollouts.action[0, 6:, 0] == 0.5).all()
    assert policy_rollouts.probability.shape == (2, horizon[TASK] // 2)
    assert (policy_rollouts.probability[0, :3] == 0).all()
    assert (policy_rollouts.probability[0, 3:] == 0.5).all()
    assert [spec.key for spec in policy_rollouts.specs("x")] == [spec_of(e.meta).key for e, _ in starts]


def test_recorded_actions_lead_the_simulator_to_where_imagination_continues(scripted_world, expert_episodes):
    class Expert(Drift):
        """Continues as the expert did after frame 8."""

        def act(self, obs, **_):
            here = 8 + 4 * len(self.shown)
            self.shown.append(obs)
            chunk = np.tile(hold_still, (1, 4, 1))
            rest = expert_episodes[0].action[here : here + 4]
            chunk[0, : len(rest)] = rest
            return Chunk(torch.from_numpy(chunk), torch.zeros(1, 4, 7).long(), torch.zeros(1, 4, 7))

    hold_still = np.array([0, 0, 0, 0, 0, 0, 1], np.float32)
    horizon = {TASK: len(expert_episodes[0]) + 8}
    starts = [(expert_episodes[0], 8)]
    policy_rollouts = imagine_from_keyframes(
        scripted_world, Expert(), starts, seed=1, horizon=horizon, exploration=Exploration()
    )
    assert execute(policy_rollouts).tolist() == [expert_episodes[0].first_success]


def test_joined_imagined_rollouts_keep_their_rows_and_stand_still_at_their_end():
    short = make_dreams(np.ones((1, 4, 7)), np.full((1, 2), 0.9))
    long = make_dreams(np.full((2, 8, 7), 0.5), np.full((2, 4), 0.3), seed=np.array([1, 2]))
    joined = join_rollouts([short, long])
    assert len(joined) == 3
    assert joined.seed.tolist() == [SEED, 1, 2]
    assert joined.action[0, :4].min() == 1
    assert joined.action[0, 4:].tolist() == [[0, 0, 0, 0, 0, 0, 1]] * 4
    np.testing.assert_array_equal(joined.probability[0], np.array([0.9, 0.9, 0, 0], np.float32))
    np.testing.assert_array_equal(joined.action[1:], long.action)
