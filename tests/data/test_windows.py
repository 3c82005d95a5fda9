"""Windows: every frame, action and command is the one that the timeline says."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import stream
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.windows.frame_store import in_blocks
from worldrl.data.windows.windows import WindowSampler

K, S, L = 4, 2, 8


@pytest.fixture(scope="module")
def episodes(make_episode):
    lengths = [20, 3, 33, 8, 15]
    events = [{"close_at": 9}, {}, {"close_at": 30, "contact_at": 31}, {"contact_at": 1}, {"close_at": 15}]
    return [make_episode(n, t, success=n != 3, **e) for n, (t, e) in enumerate(zip(lengths, events, strict=True))]


def frame_number(frames):
    return frames[..., 0, 0, 1].long()


def expect_row(batch, i, episodes, unroll):
    """Compare row ``i`` with a plain loop over the timeline."""
    e, t = int(batch.episode[i]), int(batch.start[i])
    episode, T = episodes[e], len(episodes[e])
    still = bool(batch.static[i])
    for k in range(K):
        n = t if still else max(t - (K - 1 - k) * S, 0)
        assert np.array_equal(batch.memory[i, k], episode.frames[n, 0])
    for j in range(unroll * L // S):
        ahead = 0 if still else (j + 1) * S
        n = min(t + ahead, T)
        assert np.array_equal(batch.frames[i, j], episode.frames[n, 0])
        assert bool(batch.valid[i, j]) == (t + ahead <= T)
        assert bool(batch.success[i, j]) == (n > 0 and episode.reward[n - 1] > 0)
        assert batch.opening[i, j].item() == episode.state[n, 6] - episode.state[n, 7]
    for j in range(unroll * L):
        hold = [0, 0, 0, 0, 0, 0, episode.command[t if still else T, 6]]
        expected = episode.action[t + j] if t + j < T and not still else hold
        assert batch.action[i, j].tolist() == list(map(float, expected))
        assert np.array_equal(batch.commands[i, j], episode.command[t if still else min(t + j + 1, T)])
    assert np.array_equal(batch.reference[i], episode.frames[0, 0])
    assert np.array_equal(batch.command[i], episode.command[t])
    assert (batch.instruction[i], batch.task[i]) == (episode.instruction, episode.task)


@pytest.mark.parametrize("unroll", [1, 3])
def test_alignment_of_every_row(episodes, unroll):
    sampler = WindowSampler(episodes, unroll=unroll, static_share=0.2, first_chunk_share=0.1)
    batch = sampler.sample(300, stream(0, "windows"))
    assert batch.frames.shape == (300, unroll * 4, 12, 16, 3)
    assert batch.memory.shape == (300, 4, 12, 16, 3)
    assert (batch.frames.dtype, batch.action.dtype, batch.valid.dtype) == (torch.uint8, torch.float32, torch.bool)
    assert {bool(flag) for flag in batch.static} == {True, False}
    assert not batch.valid.all()
    for i in range(300):
        expect_row(batch, i, episodes, unroll)


def test_with_a_robot_commands_are_integrated_as_in_imagination(episodes, robot):
    slow, shares = replace(robot, response=0.25), {"static_share": 0.0, "event_share": 0.0, "first_chunk_share": 0.0}
    sampler, recorded = (WindowSampler(episodes, unroll=2, **shares, robot=one) for one in (slow, None))
    batch, other = (one.sample(16, stream(3, "windows")) for one in (sampler, recorded))
    torch.testing.assert_close(batch.commands[:, :8], integrate_commands(slow, batch.command, batch.action[:, :8]))
    torch.testing.assert_close(batch.command, other.command)
    # Recorded poses show what the robot did, which imagination cannot know before it has seen the chunk's frames.
    assert not torch.allclose(batch.commands[:, :8], other.commands[:, :8])
    second = integrate_commands(slow, other.commands[:, 7], batch.action[:, 8:])
    torch.testing.assert_close(batch.commands[:, 8:], second)
    torch.testing.assert_close(batch.recorded[:, 3], other.commands[:, 7])


def test_pixels_tell_the_frame(episodes):
    """The same once more without the reference loop: frame numbers are written into the pixels."""
    batch = WindowSampler(episodes, static_share=0).sample(200, stream(1, "windows"))
    numbers = frame_number(batch.frames)
    expected = batch.start[:, None] + torch.tensor([2, 4, 6, 8])
    assert torch.equal(numbers[batch.valid], expected[batch.valid])
    last = torch.tensor([len(episodes[e]) for e in batch.episode])
    assert torch.equal(numbers[~batch.valid], last[:, None].expand_as(numbers)[~batch.valid])
    assert torch.equal(frame_number(batch.memory[:, -1]), batch.start)
    assert torch.equal(batch.memory[..., 0, 0, 0], batch.episode[:, None].expand(-1, 4).to(torch.uint8))
    real = batch.start + 8 <= last
    torch.testing.assert_close(
        batch.action[real, :, 0] * 1000, batch.start[real, None] + torch.arange(8.0), atol=1e-3, rtol=0
    )
    torch.testing.assert_close(
        batch.commands[real, :, 0] * 1000, batch.start[real, None] + torch.arange(1.0, 9.0), atol=1e-3, rtol=0
    )


def test_every_start_is_reachable_and_none_beyond(episodes):
    sampler = WindowSampler(episodes, first_chunk_share=0, static_share=0, event_share=0)
    batch = sampler.sample(6000, stream(2, "windows"))
    seen = set(zip(batch.episode.tolist(), batch.start.tolist(), strict=True))
    assert seen == {(e, t) for e, episode in enumerate(episodes) for t in range(len(episode) - S + 1)}
    assert batch.valid[:, 0].all()


def test_first_chunks(episodes):
    batch = WindowSampler(episodes, first_chunk_share=1, static_share=0, event_share=0).sample(100, stream(0, "w"))
    assert batch.start.unique().tolist() == [0]
    assert torch.equal(batch.memory, batch.reference[:, None].expand_as(batch.memory))
    assert set(batch.episode.tolist()) == set(range(5))


def test_the_chunk_in_question_begins_anywhere(episodes):
    sampler = WindowSampler(episodes, unroll=2, first_chunk_share=0, static_share=0, event_share=0)
    plain, later = (sampler.sample(500, stream(0, "w"), chunk=chunk) for chunk in (0, 1))
    assert torch.equal(later.episode, plain.episode)
    assert torch.equal(later.start, (plain.start - L).clamp_min(0))


@pytest.mark.parametrize("chunk", [0, 1])
def test_in_event_windows_the_chunk_in_question_meets_a_keyframe_or_what_follows_it(episodes, chunk):
    sampler = WindowSampler(episodes, unroll=2, first_chunk_share=0, static_share=0, event_share=1)
    batch = sampler.sample(2000, stream(0, "w"), chunk=chunk)
    events = {0: [9], 2: [30, 31], 3: [1], 4: [15]}
    for e, t in zip(batch.episode.tolist(), batch.start.tolist(), strict=True):
        at = t + chunk * L
        assert any(step - L <= at < step + L for step in events[e]) or t == 0
    offsets = 9 - batch.start[batch.episode == 0] - chunk * L
    assert set(offsets.tolist()) == set(range(-7, 2 if chunk else 9))  # the second chunk cannot start before frame 8


def test_shares_are_kept(episodes):
    sampler = WindowSampler(episodes, first_chunk_share=0.1, static_share=0.2, event_share=0.3)
    batch = sampler.sample(20000, stream(0, "w"))
    assert batch.static.float().mean().item() == pytest.approx(0.2, abs=0.015)
    uniform = WindowSampler(episodes, first_chunk_share=0, static_share=0, event_share=0).sample(20000, stream(0, "w"))
    zero = (batch.start[~batch.static] == 0).float().sum() / 20000
    # 0.1 first chunks, 0.4 of any start, and one of five events (episode 3) may begin at 0, and at 1..6 as well.
    expected = 0.1 + 0.4 * (uniform.start == 0).float().mean() + 0.3 * (1 / 5) * (1 / 7)
    assert zero.item() == pytest.approx(expected.item(), abs=0.015)


def test_static_clips_repeat_and_keep_the_gripper(episodes):
    batch = WindowSampler(episodes, first_chunk_share=0, static_share=1, event_share=0).sample(500, stream(0, "w"))
    assert batch.static.all()
    assert batch.valid.all()
    assert torch.equal(batch.frames, batch.memory[:, -1:].expand_as(batch.frames))
    assert torch.equal(batch.memory, batch.memory[:, -1:].expand_as(batch.memory))
    assert (batch.action[..., :6] == 0).all()
    assert torch.equal(batch.action[..., 6], batch.command[:, 6:].expand(-1, L))
    assert torch.equal(batch.commands, batch.command[:, None].expand_as(batch.commands))
    assert set(batch.command[:, 6].tolist()) == {-1.0, 1.0}
    changing = (batch.episode == 0) & (batch.start >= 9) & (batch.start < 9 + L)
    assert not changing.any()


def test_generator_decides_and_rows_do_not_depend_on_the_batch(episodes):
    sampler = WindowSampler(episodes)
    a, b = sampler.sample(64, stream(3, "w")), sampler.sample(64, stream(3, "w"))
    assert torch.equal(a.frames, b.frames)
    assert torch.equal(a.action, b.action)
    assert a.instruction == b.instruction
    assert torch.equal(sampler.sample(10, stream(3, "w")).frames, a.frames[:10])
    assert not torch.equal(sampler.sample(64, stream(4, "w")).start, a.start)


def test_dataset_and_list_give_the_same(episodes, record, tmp_path):
    from worldrl.data.lerobot.dataset import EpisodeDataset

    dataset = EpisodeDataset.open(record(tmp_path / "d", list(episodes)))
    a, b = (WindowSampler(source).sample(32, stream(0, "w")) for source in (episodes, dataset))
    assert torch.equal(a.frames, b.frames)
    assert torch.equal(a.commands, b.commands)


def test_blocks_join_frames_across_episodes(episodes):
    views = [episode.main_view for episode in episodes]
    whole = np.concatenate(views)
    for size in (1, 7, len(views[0]), len(whole), len(whole) + 5):
        blocks = list(in_blocks(iter(views), size))
        assert [len(block) for block in blocks[:-1]] == [size] * (len(blocks) - 1)
        assert 0 < len(blocks[-1]) <= size
        assert np.array_equal(np.concatenate(blocks), whole)


def test_a_store_keeps_what_is_made_of_the_frames_in_their_order(episodes, record, tmp_path):
    whole = np.concatenate([episode.main_view for episode in episodes])

    def brightness(views, rows):
        made = torch.cat([torch.from_numpy(view).float().mean(dim=(1, 2, 3)) for view in views])
        assert len(made) == rows
        return made

    for given in (episodes, EpisodeDataset.open(record(tmp_path / "d", episodes))):
        sampler = WindowSampler(given, keep=brightness)
        torch.testing.assert_close(sampler.store.frames, torch.from_numpy(whole).float().mean(dim=(1, 2, 3)))


def test_camera_is_chosen_by_name(make_episode):
    episodes = [make_episode(0, cameras=("scene", "wrist"), close_at=5)]
    for view, camera in enumerate(("scene", "wrist")):
        batch = WindowSampler(episodes, camera=camera).sample(8, stream(0, "w"))
        assert (batch.frames[..., 0, 0, 2] == view).all()
    with pytest.raises(ArtefactError, match="camera 'top' was not recorded; this episode has scene, wrist"):
        WindowSampler(episodes, camera="top")


def test_short_episodes_have_no_window(make_episode):
    episodes = [make_episode(0, 1), make_episode(1, 2)]
    sampler = WindowSampler(episodes, event_share=0)
    batch = sampler.sample(200, stream(0, "w"))
    assert set(batch.episode[~batch.static].tolist()) == {1}
    with pytest.raises(SettingError, match=r"no episode has 2 steps \(the longest has 1\)"):
        WindowSampler(episodes[:1])


def test_settings_are_checked(episodes, make_episode):
    for setting, message in (
        ({"chunk_length": 7}, "chunk_length 7 is not a multiple of frame_stride 2"),
        ({"memory_frames": 0}, "memory_frames must be at least 1"),
        ({"static_share": -0.1}, "static_share must be in"),
        ({"event_share": 0.95}, "must not exceed 1"),
    ):
        with pytest.raises(SettingError, match=message):
            WindowSampler(episodes, **setting)
    with pytest.raises(SettingError, match="at least one episode"):
        WindowSampler([])


def test_windows_start_anywhere_where_there_is_no_event(make_episode):
    still = [make_episode(number) for number in range(3)]
    drawn, plain = (
        WindowSampler(still, static_share=0, event_share=share).sample(64, stream(0, "w")) for share in (0.9, 0.0)
    )
    for name in ("frames", "action"):
        assert torch.equal(getattr(drawn, name), getattr(plain, name))


def test_to_moves_tensors_only(episodes):
    batch = WindowSampler(episodes).sample(2, stream(0, "w"))
    moved = batch.to("meta")
    assert moved.frames.device.type == "meta"
    assert moved.instruction == batch.instruction
