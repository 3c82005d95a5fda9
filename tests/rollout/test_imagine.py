"""WorldModelVecEnv: Gymnasium's vector semantics, and bits that depend on seed, row, episode and chunk alone."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from worldrl.core.errors import ActionError, SettingError
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore, record_at

RULE = SuccessRule(threshold=0.6, debounce=2)


@pytest.fixture
def store(make_record):
    initial = [make_record(grey) for grey in (10, 20, 30, 40, 50)]
    return ResetStore(initial, [make_record(grey, step=9) for grey in (110, 120, 130)])


@pytest.fixture
def make_env(scripted_world, store):
    def make(num_envs=3, *, horizon=12, world=scripted_world, rule=RULE, disabled=False, **over):
        mode = AutoresetMode.DISABLED if disabled else AutoresetMode.NEXT_STEP
        return WorldModelVecEnv(
            world, over.pop("store", store), rule, num_envs=num_envs, horizon=horizon, autoreset_mode=mode, **over
        )

    return make


def chunk(rows, first=-1.0):
    """Actions ``[rows, 4, 7]``; the first component is ``first``: number, per row or per row and step."""
    action = np.zeros((rows, 4, 7), np.float32)
    action[:, :, 0] = first
    return action


def random_chunk(seed, rows):
    return np.random.default_rng(seed).uniform(-1, 1, (rows, 4, 7)).astype(np.float32)


def same_obs(a, b, rows=slice(None)):
    return all(np.array_equal(a[name][rows], b[name][rows]) for name in ("image", "command"))


# -- spaces and reset ----------------------------------------------------------------------------------------


def test_observations_and_actions_lie_in_their_spaces(make_env):
    env = make_env()
    obs, info = env.reset(seed=0)
    assert obs in env.observation_space
    assert env.action_space.sample() in env.action_space
    assert info["imagined"].all()
    obs, reward, terminated, truncated, info = env.chunk_step(random_chunk(0, 3))
    assert obs in env.observation_space
    assert (reward.shape, terminated.dtype, truncated.dtype) == ((3,), np.bool_, np.bool_)
    assert len(env.render()) == 3
    env.close()


def test_step_needs_a_reset(make_env):
    with pytest.raises(gymnasium.error.ResetNeeded):
        make_env().step(np.zeros((3, 7), np.float32))


def test_same_seed_same_bits_another_seed_differs(make_env, same_tree):
    def play(seed):
        env = make_env()
        seen = [env.reset(seed=seed)]
        seen += [env.chunk_step(random_chunk(k, 3)) for k in range(2)]
        return seen

    same_tree(play(4), play(4))
    assert not same_obs(play(4)[1][0], play(5)[1][0])


def test_a_reset_without_seed_continues_to_other_states_and_noise(make_env, same_tree):
    env = make_env(8)
    first, _ = env.reset(seed=0)
    moved, *_ = env.chunk_step(chunk(8))
    second, _ = env.reset()
    assert not same_obs(first, second)
    records = env.records
    env.reset(options={"records": [records[0]] * 8})
    a, *_ = env.chunk_step(chunk(8))
    env.reset(options={"records": [records[0]] * 8})
    b, *_ = env.chunk_step(chunk(8))
    assert not np.array_equal(a["image"], b["image"])  # the same start, other noise
    again, _ = env.reset(seed=0)
    same_tree(first, again)
    same_tree(moved, env.chunk_step(chunk(8))[0])


def test_group_mates_share_start_states_but_not_noise(make_env):
    env = make_env(12, group_size=4, p_keyframe=0.5)
    obs, _ = env.reset(seed=1)
    source = [record.source for record in env.records]
    assert all(len(set(source[i : i + 4])) == 1 for i in (0, 4, 8))
    assert len(set(source)) > 1
    obs, *_ = env.chunk_step(chunk(12))
    assert len({int(image[0, 0, 0]) for image in obs["image"][:4]}) > 1


def test_own_records_and_their_number(make_env, make_record):
    env = make_env()
    obs, info = env.reset(options={"records": [make_record(grey, step=grey) for grey in (1, 2, 3)]})
    assert obs["image"][:, 0, 0, 0].tolist() == [1, 2, 3]
    assert info["start_step"].tolist() == [1, 2, 3]
    with pytest.raises(SettingError, match="one record per reset row: 3, got 1"):
        env.reset(options={"records": [make_record()]})


@pytest.mark.parametrize(
    ("options", "seed", "text"),
    [
        ({"reset_mask": np.zeros(3, bool)}, None, "reset_mask must be bool"),
        ({"reset_mask": np.ones(2, bool)}, None, "reset_mask must be bool"),
        ({"reset_mask": np.array([1, 0, 2])}, None, "reset_mask must be bool"),
        ({"reset_mask": np.array([True, False, False])}, 3, "seed is one number"),
        ({}, [1, 2, 3], "seed: must be an integer"),
        ({"start": []}, None, "unknown reset options"),
    ],
)
def test_impossible_resets_are_refused_and_change_nothing(make_env, same_tree, options, seed, text):
    env = make_env()
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(SettingError, match=text):
        env.reset(seed=seed, options=options)
    same_tree(env.get_state(), before)


def test_the_first_reset_is_of_all_rows(make_env):
    with pytest.raises(SettingError, match="first reset"):
        make_env().reset(options={"reset_mask": np.array([True, False, True])})


def test_impossible_settings_are_refused(make_env):
    for over, text in (
        ({"group_size": 2}, "group_size"),
        ({"group_size": 0}, "group_size"),
        ({"horizon": {}}, "PickRedCube"),
    ):
        with pytest.raises(SettingError, match=text):
            make_env(3, **over)


# -- time ------------------------------------------------------------------------------------------------------


def test_buffered_steps_equal_a_chunk_step_bit_for_bit(make_env, same_tree):
    a, b = make_env(), make_env()
    a.reset(seed=2)
    b.reset(seed=2)
    for k in range(2):
        actions = random_chunk(k, 3)
        before = b._observe()
        for step in range(3):
            obs, reward, terminated, truncated, _ = b.step(actions[:, step])
            same_tree(obs, before)  # the image moves once per chunk
            assert not np.stack([reward, terminated, truncated]).any()
        same_tree(b.step(actions[:, 3]), a.chunk_step(actions))
    same_tree(a.get_state(), b.get_state())


def test_chunk_step_in_the_middle_of_a_chunk_is_refused(make_env, same_tree):
    env = make_env()
    env.reset(seed=0)
    env.step(np.zeros((3, 7), np.float32))
    before = env.get_state()
    with pytest.raises(ActionError, match="middle of a chunk"):
        env.chunk_step(chunk(3))
    same_tree(env.get_state(), before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.01, -2.0])
def test_bad_actions_leave_everything_untouched(make_env, same_tree, scripted_world, bad):
    env = make_env()
    env.reset(seed=0)
    env.step(np.zeros((3, 7), np.float32))
    before, calls = env.get_state(), list(scripted_world.rows_simulated)
    action = np.zeros((3, 7), np.float32)
    action[1, 5] = bad
    with pytest.raises(ActionError, match=r"row 1, field \(5,\)"):
        env.step(action)
    for wrong in (np.zeros((2, 7), np.float32), np.zeros((3, 6), np.float32), np.zeros((3, 7), np.int64)):
        with pytest.raises(ActionError, match="float array of shape"):
            env.step(wrong)
    same_tree(env.get_state(), before)
    assert scripted_world.rows_simulated == calls


def test_truncation_at_each_rows_own_horizon(make_env, make_record):
    env = make_env(4, disabled=True, horizon=12)
    steps = (0, 4, 6, 11)  # left: 12, 8, 6 -> in its second chunk, 1 -> one chunk at least
    env.reset(options={"records": [make_record(step=step) for step in steps]})
    ends = np.zeros(4, int)
    for k in range(1, 4):
        _, _, terminated, truncated, _ = env.chunk_step(chunk(4))
        assert not terminated.any()
        assert not (truncated & (ends > 0)).any()  # said once
        ends[truncated] = k
    assert ends.tolist() == [3, 2, 2, 1]


def test_horizon_per_task(make_env, make_record):
    store = ResetStore([make_record(1), make_record(2, task="PickGreenCylinder")])
    env = make_env(2, store=store, horizon={"PickRedCube": 4, "PickGreenCylinder": 8}, disabled=True)
    env.reset(options={"records": [make_record(1), make_record(2, task="PickGreenCylinder")]})
    assert env.chunk_step(chunk(2))[3].tolist() == [True, False]
    assert env.chunk_step(chunk(2))[3].tolist() == [False, True]


def test_first_success_step_and_reward(make_env):
    env = make_env(4, disabled=True, horizon=16)
    env.reset(seed=0)
    # Frames show steps 2 and 4; debounce 2. Row 0: frames 2, 4. Row 1: frame 4, then 6. Row 2: never two. Row 3: never.
    first = np.array([[0, 0.7, 0, 0.7], [0, 0, 0, 0.7], [0, 0.7, 0, 0.59], [-1, -1, -1, -1]], np.float32)
    _, reward, terminated, truncated, info = env.chunk_step(chunk(4, first))
    assert info["first_success_step"].tolist() == [4, -1, -1, -1]
    assert terminated.tolist() == [True, False, False, False]
    np.testing.assert_array_equal(reward, terminated)
    np.testing.assert_allclose(info["success_prob"][0], [0.7, 0.7])
    second = np.array([[0, 0, 0, 0], [0, 0.7, 0, 0], [0, 0, 0, 0.7], [-1, -1, -1, -1]], np.float32)
    _, reward, terminated, truncated, info = env.chunk_step(chunk(4, second))
    assert info["first_success_step"].tolist() == [-1, 6, -1, -1]  # the streak runs on over the border
    assert terminated.tolist() == [False, True, False, False]
    assert not truncated.any()


def test_success_beyond_the_horizon_does_not_count(make_env, make_record):
    """A real episode would be over: horizon 12, started at step 6, so frames at 8 (4+4) show time beyond it."""
    env = make_env(2, disabled=True, horizon=12)
    env.reset(options={"records": [make_record(step=6), make_record(step=4)]})
    env.chunk_step(chunk(2))
    late = np.array([[0, 0.7, 0, 0.7]] * 2, np.float32)
    _, reward, terminated, truncated, info = env.chunk_step(chunk(2, late))
    assert info["first_success_step"].tolist() == [-1, 8]
    assert reward.tolist() == [0, 1]
    assert (terminated.tolist(), truncated.tolist()) == ([False, True], [True, False])


def test_streak_does_not_survive_a_reset(make_env):
    env = make_env(1, disabled=True, horizon=16)
    env.reset(seed=0)
    env.chunk_step(chunk(1, [[0, 0, 0, 0.7]]))
    env.reset()
    assert not env.chunk_step(chunk(1, [[0, 0.7, 0, 0]]))[2].any()


# -- autoreset ---------------------------------------------------------------------------------------------------


def test_next_step_autoreset(make_env, scripted_world):
    env = make_env(2, horizon=40)
    env.reset(seed=0)
    actions = chunk(2, [[0.9] * 4, [-1] * 4])
    for step in range(4):
        obs, reward, terminated, truncated, _ = env.step(actions[:, step])
    assert terminated.tolist() == [True, False]
    obs, reward, terminated, truncated, info = env.step(np.full((2, 7), 0.9, np.float32))
    assert not np.stack([reward, terminated, truncated]).any()
    assert env.elapsed.tolist() == [0, 5]  # the action of the row that was over is ignored
    assert env.phase.tolist() == [0, 1]
    assert env.episode.tolist() == [1, 0]
    np.testing.assert_array_equal(obs["image"][0], env.records[0].memory[-1])
    assert info["task"][0] == env.records[0].task
    assert scripted_world.rows_simulated == [2]
    for _ in range(3):  # row 1 fills its chunk one step before row 0
        env.step(np.zeros((2, 7), np.float32))
    assert scripted_world.rows_simulated == [2, 1]
    env.step(np.zeros((2, 7), np.float32))
    assert scripted_world.rows_simulated == [2, 1, 1]


def test_a_row_that_is_over_leaves_its_neighbour_alone(make_env):
    """Row 1's episode is the same whether or not row 0 was reset beside it."""
    seen = []
    for first in (0.9, -1.0):
        env = make_env(2, horizon=40)
        env.reset(seed=3)
        for _ in range(3):
            for step in chunk(2, [[first] * 4, [-1] * 4]).swapaxes(0, 1):
                obs, *_ = env.step(step)
        while env.phase[1]:
            obs, *_ = env.step(np.zeros((2, 7), np.float32))
        seen.append(obs["image"][1])
    np.testing.assert_array_equal(*seen)


def test_disabled_rows_wait_unsimulated_until_their_reset(make_env, scripted_world):
    env = make_env(3, disabled=True, horizon=40)
    env.reset(seed=0)
    first, *_ = env.chunk_step(chunk(3, [[0.9] * 4, [-1] * 4, [0.9] * 4]))
    for _ in range(2):
        obs, _, terminated, truncated, info = env.chunk_step(chunk(3, [[0.9] * 4, [-1] * 4, [0.9] * 4]))
        assert not (terminated | truncated)[[0, 2]].any()
        assert info["first_success_step"][[0, 2]].tolist() == [-1, -1]
        assert same_obs(obs, first, [0, 2])
        assert not np.array_equal(obs["image"][1], first["image"][1])
    assert scripted_world.rows_simulated == [3, 1, 1]
    before = env.get_state()
    obs, _ = env.reset(options={"reset_mask": np.array([True, False, False])})
    assert env.elapsed.tolist() == [0, 12, 4]
    assert env.over.tolist() == [False, False, True]
    assert env.episode.tolist() == [1, 0, 0]
    assert env.records[1:] == [env.records[1], env.records[2]]
    np.testing.assert_array_equal(obs["image"][1:], before["recent"]["image"][1:, -1])
    np.testing.assert_array_equal(obs["image"][0], env.records[0].memory[-1])
    env.chunk_step(chunk(3))
    assert scripted_world.rows_simulated == [3, 1, 1, 2]


def test_when_all_rows_are_over_nothing_is_simulated(make_env, scripted_world):
    env = make_env(2, disabled=True, horizon=4)
    env.reset(seed=0)
    assert env.chunk_step(chunk(2))[3].all()
    assert not env.chunk_step(chunk(2))[3].any()
    assert scripted_world.rows_simulated == [2]


# -- save and restore ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", ["scripted", "video"])
def test_a_restored_state_resumes_bit_for_bit_in_the_middle_of_a_chunk(
    make_env, same_tree, scripted_world, world_model, world
):
    def make():
        model = scripted_world if world == "scripted" else world_model
        return make_env(3, world=model, rule=SuccessRule(0.5, 1), horizon=8, p_keyframe=0.5)

    draw = np.random.default_rng(0)
    actions = draw.uniform(-1, 1, (22, 3, 7)).astype(np.float32)
    env = make()
    env.reset(seed=6)
    for action in actions[:11]:
        env.step(action)
    saved, kept = env.get_state(), env.get_state()
    assert saved["counters"]["phase"].any()
    expected = [env.step(action) for action in actions[11:]]
    same_tree(saved, kept)  # a copy, not a view of the running environment
    other = make()
    other.set_state(saved)
    same_tree([other.step(action) for action in actions[11:]], expected)
    same_tree(other.get_state(), env.get_state())


def test_the_video_models_state_is_not_touched_by_a_bad_action(make_env, world_model, same_tree):
    env = make_env(3, world=world_model)
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(ActionError):
        env.chunk_step(np.full((3, 4, 7), np.nan, np.float32))
    same_tree(env.get_state(), before)
    env.chunk_step(chunk(3))


def test_noise_of_a_row_depends_on_seed_row_episode_and_chunk(make_env, make_record, world_model):
    """Rows with the same start and the same actions are imagined differently; the same row with less company alike."""
    env = make_env(3, world=world_model, disabled=True, horizon=40)
    env.reset(seed=0, options={"records": [make_record()] * 3})
    together, *_ = env.chunk_step(chunk(3))
    assert not np.array_equal(together["image"][0], together["image"][1])
    alone = make_env(1, world=world_model, disabled=True, horizon=40)
    alone.reset(seed=0, options={"records": [make_record()]})
    single, *_ = alone.chunk_step(chunk(1))
    assert np.abs(single["image"][0].astype(int) - together["image"][0]).max() <= 1


def test_keyframe_starts_show_the_moment_before(make_env, push_episode, world_model):
    episode = push_episode(3, 16)
    record = record_at(episode, 6, memory_frames=2, frame_stride=2, source="test")
    env = make_env(1, world=world_model, store=ResetStore([record]), horizon=16)
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs["image"][0], episode.frames[6, 0])
    np.testing.assert_allclose(obs["command"][0], episode.command[6])
    obs, *_ = env.chunk_step(episode.action[None, 6:10])
    np.testing.assert_allclose(obs["command"][0], episode.command[10], atol=1e-6)
    assert torch.is_tensor(env.get_state()["world"]["memory"])
