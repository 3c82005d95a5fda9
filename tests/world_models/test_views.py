"""World models of several cameras and the measured state: views together in one sequence, and the state head."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.errors import ActionError, SettingError
from worldrl.core.observation import split_views
from worldrl.core.rng import initial_weights, row_streams
from worldrl.core.storage.jsonfile import read_json
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.extension import extended
from worldrl.world_models.video.heads import LARGEST_LOG_VARIANCE, StateHead, gaussian_nll
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import fit_codec, fit_dynamics
from worldrl.world_models.video.training_config import WorldModelTraining

NAMES = {"cameras": ["image", "wrist_image"], "state": "measured"}
INSTRUCTIONS = TaskInstructions(same={}, other={})
SMALL = {"steps": 6, "batch": 4, "warmup": 2, "checkpoint_every": 2, "dtype": "float32", "unroll": 2, "codec_batch": 4}


@pytest.fixture
def make_two(make_world_model):
    """Build a tiny world model of two cameras and the measured state, with shaken weights."""

    def make(spread=0.2, **dynamics):
        config = make_world_model(**dynamics).config
        plain = VideoWorldModelConfig.from_json({**config.to_json(), **NAMES})
        with initial_weights(0, "views"):
            model = VideoWorldModel(plain, make_world_model().embodiment).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(spread * torch.randn_like(parameter))
        return model

    return make


def starts(model, episodes, step=4):
    return [
        record_at(e, step, memory_frames=model.memory_frames, frame_stride=2, source="x", more=model.more)
        for e in episodes
    ]


def chunk(model, episodes, **over):
    """One imagined chunk of two episodes from their frame 4, and the state after it."""
    state = model.start([replace(record, **over) for record in starts(model, episodes[:2])])
    action = torch.stack([torch.from_numpy(e.action[4 : 4 + model.chunk_length]) for e in episodes[:2]])
    return model.imagine(state, action, generators=row_streams(0, ["g"], 2))


def test_one_view_gives_the_numbers_of_models_before_there_were_several(make_world_model, push_episode):
    model = make_world_model()
    _, imagined = chunk(model, [push_episode(0), push_episode(1)])
    assert sum(parameter.numel() for parameter in model.parameters()) == 415311
    assert imagined.latent.double().sum().item() == pytest.approx(49.902514427900314, rel=1e-5)
    first = [0.7098750472068787, 1.5966427326202393, 1.1291857957839966]
    assert imagined.latent.flatten()[:3].tolist() == pytest.approx(first, rel=1e-5)
    assert imagined.state is None


def test_swapped_views_with_their_embeddings_give_swapped_latents(make_two):
    dynamics = make_two().dynamics
    draw = torch.Generator().manual_seed(0)
    channels, frames, memory = 4, dynamics.config.chunk_frames, dynamics.config.memory_frames
    shapes = (3, frames, channels, 4, 2), (3, channels, 4, 2), (3, memory, channels, 4, 2), (3, 4, 14)
    given = [torch.randn(shape, generator=draw) for shape in shapes]
    level = torch.rand(3, generator=draw)
    clean, _ = dynamics(given[0], level, *given[1:])

    def swap(value):
        return torch.cat(value.chunk(2, dim=-2)[::-1], dim=-2)

    swapped_inputs = [swap(value) for value in given[:3]] + given[3:]
    unswapped, _ = dynamics(swapped_inputs[0], level, *swapped_inputs[1:])
    assert not torch.allclose(unswapped, swap(clean), atol=1e-3)  # the embeddings tell the views apart
    with torch.no_grad():
        dynamics.views.embedding.copy_(dynamics.views.embedding.flip(0).clone())
    first, further = dynamics.pose_map, dynamics.views.pose_maps[0]
    dynamics.pose_map, dynamics.views.pose_maps[0] = further, first
    swapped, _ = dynamics(swapped_inputs[0], level, *swapped_inputs[1:])
    assert torch.allclose(swapped, swap(clean), atol=1e-5)


def test_swapped_views_with_their_embeddings_give_swapped_images_of_the_unet(make_two):
    """Bit for bit up to rounding, so that no convolution reaches over the seam between two views."""
    dynamics, draw = make_two(kind="edm_unet").dynamics, torch.Generator().manual_seed(0)
    past = 3 * (1 + dynamics.config.memory_frames)
    x, seen = (torch.randn((3, channels, 32, 16), generator=draw) for channels in (3, past))
    level, action = (
        torch.rand(3, generator=draw) + 0.1,
        torch.randn((3, dynamics.config.frame_stride, 14), generator=draw),
    )
    clean, _ = dynamics(x, level, seen, action)

    def swap(value):
        return torch.cat(value.chunk(2, dim=-2)[::-1], dim=-2)

    assert not torch.allclose(dynamics(swap(x), level, swap(seen), action)[0], swap(clean), atol=1e-3)
    with torch.no_grad():
        dynamics.view.copy_(dynamics.view.flip(0).clone())
    assert torch.allclose(dynamics(swap(x), level, swap(seen), action)[0], swap(clean), atol=1e-4)


@pytest.mark.parametrize("kind", ["flow_transformer", "edm_unet"])
def test_views_are_denoised_together(make_two, two_views, kind):
    model = make_two(kind=kind)
    _, imagined = chunk(model, two_views)
    dark = [replace(e, frames=np.stack([e.frames[:, 0], 0 * e.frames[:, 1]], axis=1)) for e in two_views]
    _, other = chunk(model, dark)
    scene, changed = (split_views(i.latent.movedim(2, -1), model.more)["image"] for i in (imagined, other))
    assert not torch.allclose(scene, changed)  # what the wrist sees decides what the scene shows


def test_a_weight_for_one_view_takes_further_views_and_the_state(make_world_model, two_views):
    held = make_world_model()
    wanted = VideoWorldModelConfig.from_json({**held.config.to_json(), **NAMES})
    model = extended(held, wanted, seed=0)
    assert model.more == ("wrist_image", "state")
    for name, value in held.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    with pytest.raises(SettingError, match="cameras"):
        extended(model, VideoWorldModelConfig.from_json({**NAMES, "cameras": ["image", "left_image"]}), seed=0)


def test_gaussian_nll_is_that_of_the_normal_distribution():
    mean, log_variance, target = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    normal = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    assert torch.allclose(gaussian_nll(mean, log_variance, target), -normal.log_prob(target), atol=1e-5)


def test_the_state_heads_loss_counts_valid_frames_in_the_datas_scale():
    head = StateHead(width=8, heads=2, frames=2, command=3, numbers=2)
    draw = torch.Generator().manual_seed(0)
    commands, slope = torch.randn(400, 3, generator=draw), torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    left = torch.randn(400, generator=draw)
    rows = commands @ slope + torch.stack([0.5 * left, torch.full_like(left, 5.0)], dim=1)
    head.scale_to(rows, commands)
    assert torch.allclose(head.gain, slope, atol=0.1)
    assert head.deviation.tolist() == pytest.approx(
        [0.5, 1e-4], rel=0.1
    )  # what follows is not scaled to unit deviation
    before = head.offset.clone()
    head.scale_to(rows + 10, commands)
    assert torch.equal(head.offset, before)  # the first scale stays: the weights are made for it
    features, command = torch.randn(1, 4, 8), torch.randn(1, 2, 3)
    state, valid = torch.tensor([[[2.5, 5.0], [900.0, 900.0]]]), torch.tensor([[True, False]])
    mean, log_variance = head(features, command)
    true = (state[0, 0] - head.from_command(command[0, 0])) / head.deviation
    expected = gaussian_nll(mean[0, 0], log_variance[0, 0], true).mean()
    assert head.loss(features, command, state, valid).item() == pytest.approx(expected.item(), rel=1e-5)
    measured, deviation = head.measure(features, command)
    assert torch.allclose(measured, head.from_command(command) + head.deviation * mean)
    assert (deviation / head.deviation).log().max().item() <= LARGEST_LOG_VARIANCE / 2 + 0.1


def test_two_views_and_the_state_are_learned(make_two, two_views):
    model = make_two(spread=0.0)
    config = WorldModelTraining(
        **(SMALL | {"steps": 100, "batch": 16, "warmup": 10, "codec_steps": 100, "unroll": 1, "bootstrap": 0.0})
    )
    config = replace(config, learning_rate=3e-3, codec_learning_rate=3e-3, codec_batch=32)
    frames = torch.from_numpy(np.concatenate([episode.sheet(model.config.cameras) for episode in two_views]))
    fit_codec(model, frames, config, seed=0, folder=None, log=None)
    fit_dynamics(model, two_views, config, instructions=INSTRUCTIONS, seed=0, folder=None, log=None)
    after, imagined = chunk(model, two_views)
    true = np.stack([e.state[[6, 8]] for e in two_views[:2]])
    lag = np.stack([e.state[[6, 8]] - np.pad(e.command[[6, 8]], ((0, 0), (0, 1))) for e in two_views[:2]])
    error = np.abs(imagined.state.numpy() - true)[..., :2]
    assert (error.mean(axis=(0, 1)) < 0.5 * np.abs(lag)[..., :2].mean(axis=(0, 1))).all()  # not the command alone
    assert torch.equal(after.measured, imagined.state[:, -1])
    sheet = model.decode_newest(after, 1)[:, 0]
    real = torch.from_numpy(np.stack([e.sheet(model.config.cameras)[8] for e in two_views[:2]]))
    for name, view in split_views(sheet, model.more).items():
        difference = (view.float() - split_views(real, model.more)[name].float()).square().mean()
        assert 10 * torch.log10(255**2 / difference) > 14, name


@pytest.mark.parametrize("kind", ["flow_transformer", "edm_unet"])
def test_training_two_views_resumes_to_the_same_bits(make_two, two_views, tmp_path, same_tree, kind):
    def run(folder, steps):
        model = make_two(kind=kind)
        config = WorldModelTraining(**(SMALL | {"steps": steps}))
        fit_dynamics(model, two_views, config, instructions=INSTRUCTIONS, seed=3, folder=folder, log=None)
        return dict(model.state_dict())

    whole = run(tmp_path / "whole", 6)
    same_tree(run(tmp_path / "whole", 6), whole)
    assert bool(whole["state_head.scaled"])


def test_folders_state_what_is_observed(make_two, two_views, tmp_path, same_tree):
    model = make_two()
    model.save(tmp_path / "model")
    again = VideoWorldModel.load(tmp_path / "model")
    same_tree(dict(again.state_dict()), dict(model.state_dict()))
    stated = read_json(tmp_path / "model" / "config.json")["observation"]
    assert list(stated["cameras"]) == ["image", "wrist_image"]
    assert stated["state"]["units"][:4] == ["m", "m", "m", "rad"]
    assert stated["command"]["names"][-1] == "gripper"
    config = read_json(tmp_path / "model" / "config.json")
    config["observation"]["cameras"]["image"]["height"] = 8
    with pytest.raises(SettingError, match="height"):
        model.observation.require_stored(config, tmp_path)


def test_a_record_without_state_and_cameras_that_do_not_fit_are_refused(make_two, two_views, make_world_model):
    with pytest.raises(ActionError, match="state"):
        chunk(make_two(), two_views, state=None)
    plain = make_world_model().config.to_json()
    for cameras in ([], ["wrist_image"], ["image", "image"], ["image", "wrist"]):
        with pytest.raises(SettingError, match="cameras"):
            VideoWorldModelConfig.from_json({**plain, "cameras": cameras})
    with pytest.raises(SettingError, match="measured"):
        VideoWorldModelConfig.from_json({**plain, "state": "measure"})
