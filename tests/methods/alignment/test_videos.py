"""Trees of videos: a row's video depends on its key alone, children share what came before, ratios begin at 1."""

import pytest
import torch

from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.rng import row_streams, stream
from worldrl.diffusion.sde import Denoising, make_schedule
from worldrl.methods.alignment.flow_grpo import FlowGrpoConfig, flow_grpo
from worldrl.methods.alignment.ratio import DenoisingLogProb, noisy_steps
from worldrl.methods.alignment.task import acted, commanded, judge
from worldrl.methods.alignment.videos import grow
from worldrl.methods.rl.interfaces import Collected, Request
from worldrl.methods.rl.losses import clipped
from worldrl.world_models.video.model import VideoWorldModel

NOISY = make_schedule(Denoising(steps=3, noise="constant", eta=0.5))
PLAIN = make_schedule(Denoising(steps=3, noise="none"))
START = torch.tensor([0, 1])


def group_keys(iteration, prompts, size):
    """Name ``size`` rows for each prompt."""
    request = Request.make(iteration, torch.arange(prompts), torch.full((prompts,), size))
    return request.keys, request.group


def test_without_noise_a_video_is_what_the_world_model_imagines(make_task):
    task = make_task()
    task.model.config.dynamics.sampling_steps = 3
    keys, group = group_keys(0, 2, 1)
    tree = grow(task, PLAIN, START, keys, group)
    state, frames = task.model.start([task.starts.records[i] for i in (0, 1)]), []
    for chunk in range(2):
        generators = [stream(task.seed, "videos", *key, "chunk", chunk) for key in keys]
        state, imagined = task.model.imagine(state, None, generators=generators)
        frames.append(imagined.latent)
    torch.testing.assert_close(tree.latent, torch.cat(frames, dim=1), rtol=1e-5, atol=1e-5)
    assert tree.evaluations == 2 * 3 * 2


def test_a_rows_video_depends_on_its_key_alone(make_task):
    task = make_task()
    keys, group = group_keys(5, 2, 4)
    tree = grow(task, NOISY, START, keys, group)
    alone = grow(task, NOISY, START, [keys[6]], group[6:7])
    torch.testing.assert_close(alone.latent[0], tree.latent[6], rtol=1e-4, atol=1e-5)
    assert tree.start.tolist() == [0] * 4 + [1] * 4
    assert len({tuple(video.flatten().tolist()) for video in tree.latent}) == 8


def test_shared_noise_is_the_first_of_every_chunk(make_task):
    task = make_task()
    keys, group = group_keys(0, 2, 4)
    tree = grow(task, NOISY, START, keys, group, shared_noise=True)
    for layer in (tree.layers[0], tree.layers[3]):
        assert torch.equal(layer.x[:4], layer.x[:1].expand(4, -1, -1, -1, -1))
        assert not torch.equal(layer.x[0], layer.x[4])
    assert not torch.equal(tree.layers[0].x_next[0], tree.layers[0].x_next[1])


@pytest.mark.parametrize("splits", [{}, {0: 2, 1: 3}, {1: 2, 3: 2}])
def test_ratios_begin_at_one_wherever_the_tree_splits(make_task, splits):
    """Asked again, the network gives every noisy step the log-probability it was drawn with."""
    task = make_task()
    keys, group = group_keys(0, 2, 1 if splits else 3)
    for reduce in ("mean", "sum"):
        tree = grow(task, NOISY, START, keys, group, reduce=reduce, splits=splits)
        ones = torch.ones(len(tree.layers), len(tree.group))
        steps = noisy_steps(tree, NOISY, ones, ones)
        loss, logs = clipped(DenoisingLogProb(task.dynamics, NOISY, reduce)(steps, torch.Generator()))
        assert logs["log_ratio"] < 1e-4
        assert loss.item() == pytest.approx(-1, abs=1e-4)
        assert len(steps) == sum(len(layer.group) for layer in tree.layers if layer.step < 2)


def test_children_share_one_evaluation_and_what_came_before(make_task):
    task = make_task()
    keys, group = group_keys(0, 2, 1)
    tree = grow(task, NOISY, START, keys, group, splits={1: 2, 3: 2})
    assert [len(layer.group) for layer in tree.layers] == [2, 4, 4, 8, 8, 8]
    assert tree.evaluations == 2 + 2 + 4 + 4 + 8 + 8
    assert tree.layers[1].parent.tolist() == [0, 0, 1, 1]
    assert torch.equal(tree.layers[1].x[0], tree.layers[1].x[1])
    assert not torch.equal(tree.layers[1].x_next[0], tree.layers[1].x_next[1])
    assert torch.equal(tree.latent[0, :2], tree.latent[1, :2])  # the first chunk is one, the second is not
    assert not torch.equal(tree.latent[0, 2:], tree.latent[1, 2:])
    assert tree.group.tolist() == [0] * 4 + [1] * 4


def test_videos_follow_given_actions(make_task):
    action = torch.rand(3, 8, 7, generator=stream(0, "action")) * 2 - 1
    task = make_task(action=action)
    keys, group = group_keys(0, 2, 1)
    tree = grow(task, PLAIN, START, keys, group)
    state = task.model.start([task.starts.records[i] for i in (0, 1)])
    task.model.config.dynamics.sampling_steps = 3
    after, imagined = task.model.imagine(state, action[:2, :4], generators=row_streams(0, ("n",), 2))
    assert not torch.equal(tree.layers[0].around.condition, task.model.plan(state))
    assert torch.equal(tree.layers[0].around.condition, task.model.chunk_condition(state, action[:2, :4])[0])
    torch.testing.assert_close(
        tree.layers[3].around.condition, task.model.chunk_condition(after, action[:2, 4:])[0], rtol=1e-6, atol=1e-6
    )
    assert imagined.latent.shape[1] == 2


def test_rewards_see_whole_videos_from_the_recorded_frame_on(make_task):
    task = make_task(names=("bright", "even"))
    seen = []
    task.reward.score = lambda videos: seen.append(videos) or torch.zeros(videos.rows, 2)
    keys, group = group_keys(0, 2, 2)
    tree = grow(task, PLAIN, START, keys, group)
    judge(task, tree.latent, tree.start)
    (videos,) = seen
    assert (videos.frames.shape, videos.frames.dtype) == ((4, 5, 16, 16, 3), torch.uint8)
    assert videos.frames[:, 0, 0, 0, 0].tolist() == [60, 60, 120, 120]
    assert torch.equal(videos.frames[:, 1:], task.model.decode(tree.latent, videos.frames[:, 0]))
    assert list(videos.instruction) == ["pick up the red cube"] * 2 + ["pick up the green cylinder"] * 2
    assert (videos.frame_s, videos.command) == (0.1, None)


def test_rewards_of_a_model_that_is_given_actions_see_the_command_at_every_frame(make_task):
    action = torch.rand(3, 8, 7, generator=stream(0, "action")) * 2 - 1
    task = make_task(action=action)
    start = torch.tensor([1, 0])
    told = acted(task, start, 3)
    assert told is not None
    found = commanded(task, start, told)
    first = torch.from_numpy(task.starts.records[1].command)
    after = integrate_commands(task.model.embodiment, first[None], action[1:2])[0]
    assert found.shape == (2, 4, 7)
    torch.testing.assert_close(found[0], torch.stack([first, after[1], after[3], after[5]]))  # two steps to a frame


def test_rewards_that_lie_about_themselves_are_refused(make_task):
    task = make_task()
    latent = torch.zeros(2, 4, *task.model.codec.latent_shape)
    for answer, error in ((torch.zeros(2, 2), SettingError), (torch.tensor([[0.0], [torch.nan]]), NonFiniteError)):
        task.reward.score = lambda videos, answer=answer: answer
        with pytest.raises(error, match="bright"):
            judge(task, latent, START)


def test_advantages_are_clipped_by_group(make_task):
    """An advantage of the one that stands out among four is 1.5; the others have -0.5, and two equals of their own 0.7."""
    task = make_task(advantage_clip=1.0, chunks=1)
    method = flow_grpo(task, FlowGrpoConfig(Denoising(steps=2, noise="constant")))
    keys, group = group_keys(0, 2, 4)
    tree = grow(task, method.source.schedule, START, keys, group)
    terms = torch.tensor([[0.0], [1.0], [0.0], [1.0], [5.0], [5.0], [5.0], [1e6]])
    steps = method.decided(method.request(0), Collected(tree, terms), {})
    high = 3**0.5 / 2
    assert steps.advantage.tolist() == pytest.approx([-high, high, -high, high, -0.5, -0.5, -0.5, 1.0], abs=1e-3)


def test_starts_differ_as_long_as_there_are_enough(make_task):
    def drawn(prompts, iteration):
        method = flow_grpo(make_task(prompts=prompts), FlowGrpoConfig())
        return method.request(iteration).starts.tolist()

    assert sorted(drawn(3, 0)) == [0, 1, 2]
    assert any(drawn(3, k) != drawn(3, 0) for k in range(1, 6))
    assert sorted(drawn(6, 0)) == [0, 0, 1, 1, 2, 2]


def test_other_dynamics_are_refused(make_world_model, make_task):
    task = make_task()
    for model in (make_world_model(kind="edm_unet"), make_world_model(refinement_steps=1)):
        assert isinstance(model, VideoWorldModel)
        with pytest.raises(SettingError, match="flow transformer without refinement"):
            type(task)(model, task.starts, task.reward, task.mix, 0.1, task.config, 0)
