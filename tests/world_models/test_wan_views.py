"""The Wan world model of several cameras and the measured state."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.errors import ActionError, SettingError
from worldrl.core.observation import split_views
from worldrl.core.rng import initial_weights, row_streams
from worldrl.core.storage.jsonfile import read_json
from worldrl.policies.exploration import Exploration
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore, record_at
from worldrl.rollout.imagined.rollouts import imagine_rollouts
from worldrl.world_models.loading import open_world_model
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.wan.adapter import is_trained
from worldrl.world_models.wan.config import WanConfig
from worldrl.world_models.wan.dynamics import ViewPatches, ViewPlaces
from worldrl.world_models.wan.fit import fit_wan
from worldrl.world_models.wan.training import WanTraining

pytest.importorskip("diffusers")
pytest.importorskip("peft")

NAMES = {"cameras": ("image", "wrist_image"), "state": "measured"}
CPU = torch.device("cpu")


@pytest.fixture
def model(make_wan):
    """A tiny model of two cameras and the measured state."""
    return make_wan(**NAMES)


def starts(model, episodes, step=4):
    layout = {"memory_frames": model.memory_frames, "frame_stride": model.frame_stride, "more": model.more}
    return [record_at(e, step, source="x", **layout) for e in episodes]


def chunk(model, episodes, **over):
    """One imagined chunk of two episodes from their frame 4, and the state after it."""
    state = model.start([replace(record, **over) for record in starts(model, episodes[:2])])
    action = torch.stack([torch.from_numpy(e.action[4 : 4 + model.chunk_length]) for e in episodes[:2]])
    return model.imagine(state, action, generators=row_streams(0, ["g"], 2))


def swap(value):
    """Exchange the two views of sheets ``[..., 2 h, w]``."""
    return torch.cat(value.chunk(2, dim=-2)[::-1], dim=-2)


def train(model, episodes, folder=None, **over):
    small = {"steps": 4, "batch": 2, "warmup": 1, "checkpoint_every": 2, "dtype": "float32", "new_learning_rate": 1e-3}
    config = WanTraining(**(small | over))
    instructions = TaskInstructions({}, {})
    return fit_wan(model, episodes, config, instructions=instructions, seed=3, device=CPU, folder=folder, log=None)


def test_a_chunk_has_all_views_and_the_state_in_the_robots_units(model, two_views):
    after, imagined = chunk(model, two_views)
    assert imagined.latent.shape == (2, 3, 4, 8, 4)
    assert imagined.success_prob.shape == (2, 4)
    assert imagined.state.shape == imagined.state_deviation.shape == (2, 4, 8)
    assert (imagined.state_deviation > 0).all()
    assert torch.equal(after.measured, imagined.state[:, -1])
    assert after.memory.shape == (2, 4, 32, 16, 3)
    assert model.decode(imagined.latent, after.reference).shape == (2, 4, 32, 16, 3)
    assert model.more == ("wrist_image", "state")


def test_each_view_is_encoded_and_decoded_alone(model, two_views, make_wan):
    one = make_wan()
    sheet = torch.from_numpy(two_views[0].sheet(NAMES["cameras"])[None, :5])
    latent = model.codec.encode(sheet)
    for view, alone in zip(sheet.chunk(2, dim=2), latent.chunk(2, dim=-2), strict=True):
        torch.testing.assert_close(one.codec.encode(view), alone, atol=1e-5, rtol=1e-5)
    frames = model.codec.decode(latent)
    for view, alone in zip(frames.chunk(2, dim=2), latent.chunk(2, dim=-2), strict=True):
        assert (one.codec.decode(alone).int() - view.int()).abs().max() <= 1  # rounding
    with pytest.raises(SettingError, match=r"frames must be \[B, 1 \+ 4k, 32, 16, 3\]"):
        model.codec.encode(sheet[:, :, :16])


@pytest.mark.parametrize(("seen", "changed"), [("image", 1), ("wrist_image", 0)])
def test_the_history_of_one_view_changes_what_the_other_shows(model, two_views, seen, changed):
    def dark(episode):
        frames = episode.frames.copy()
        frames[:, changed] = 0
        return replace(episode, frames=frames)

    one, other = (chunk(model, episodes)[1].latent[:, 2:] for episodes in (two_views, [dark(e) for e in two_views]))
    shown = (split_views(latent.movedim(2, -1), model.more)[seen] for latent in (one, other))
    difference = torch.sub(*shown).abs().max().item()
    assert difference > 1e-4, difference


def test_swapped_views_with_their_embeddings_give_swapped_velocities(model):
    dynamics, draw = model.dynamics, torch.Generator().manual_seed(0)
    x, action = torch.randn(2, 3, 4, 8, 4, generator=draw), torch.rand(2, 9, 7, generator=draw)
    level = torch.tensor([0.3, 0.9])
    with torch.no_grad():
        velocity = dynamics(x, level, action)[0]
        assert not torch.allclose(dynamics(swap(x), level, action)[0], swap(velocity), atol=1e-3)
        embedding = dynamics.transformer.patch_embedding.view_embedding
        embedding.copy_(embedding.flip(0).clone())
        torch.testing.assert_close(dynamics(swap(x), level, action)[0], swap(velocity), atol=1e-5, rtol=1e-5)


def test_a_token_has_the_published_place_within_its_view(make_wan):
    published, x = make_wan().dynamics.transformer, torch.zeros(1, 4, 3, 8, 4)
    one = published.rope(x[..., :4, :])
    for places, alone in zip(ViewPlaces(published.rope, 2)(x), one, strict=True):
        views = places.unflatten(1, (3, 2, 4))
        assert torch.equal(views[:, :, 0], alone.unflatten(1, (3, 4)))
        assert torch.equal(views[:, :, 1], views[:, :, 0])
    patches = ViewPatches(published.patch_embedding, 2)
    patches.view_embedding.data[1] = 5.0
    added = patches(x) - published.patch_embedding(x)
    assert added[..., :2, :].abs().max() == 0
    torch.testing.assert_close(added[..., 2:, :], torch.full_like(added[..., 2:, :], 5.0))


def test_training_moves_the_view_embedding_and_the_state_head(make_wan, two_views):
    model = make_wan(spread=0.0, **NAMES)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = train(model, two_views)
    assert report.logs["wm/state_nll"] == report.logs["wm/state_nll"]
    moved = {name for name, value in model.state_dict().items() if not torch.equal(before[name], value)}
    assert all(is_trained(name, model.config.dynamics) for name in moved)
    assert "dynamics.transformer.patch_embedding.view_embedding" in moved
    assert "dynamics.transformer.patch_embedding.weight" not in moved
    assert {"state_head.gain", "state_head.scaled", "state_head.command.weight"} <= moved


def test_the_state_is_learned_where_the_command_alone_is_wrong(make_wan, two_views):
    model = make_wan(spread=0.0, **NAMES)
    train(model, two_views, steps=60, batch=8, warmup=5, checkpoint_every=60, new_learning_rate=3e-3)
    _, imagined = chunk(model, two_views)
    true = np.stack([e.state[5:9] for e in two_views[:2]])
    lag = np.stack([e.state[5:9] - np.pad(e.command[5:9], ((0, 0), (0, 1))) for e in two_views[:2]])[..., :2]
    error = np.abs(imagined.state.numpy() - true)[..., :2]
    assert (error.mean(axis=(0, 1)) < 0.5 * np.abs(lag).mean(axis=(0, 1))).all()


def test_training_resumes_to_the_same_bits(make_wan, two_views, tmp_path, same_tree):
    whole, half = (make_wan(spread=0.0, **NAMES) for _ in range(2))
    train(whole, two_views, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(half.state_head), "loss", _stops_after(3, type(half.state_head).loss))
        with pytest.raises(RuntimeError, match="stopped"):
            train(half, two_views, tmp_path / "half")
    again = make_wan(spread=0.0, **NAMES)
    assert train(again, two_views, tmp_path / "half").resumed_from == 2
    same_tree(again.trained(), whole.trained())


def _stops_after(calls, loss):
    count = iter(range(calls))

    def stopping(self, *args):
        if next(count, None) is None:
            raise RuntimeError("stopped")
        return loss(self, *args)

    return stopping


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_saved_and_loaded_is_the_same_model(make_wan, two_views, same_tree, tmp_path, adapter):
    model = make_wan(adapter=adapter, **NAMES)
    model.save(tmp_path / "model")
    loaded = open_world_model(tmp_path / "model")
    assert loaded.config == model.config
    same_tree(dict(loaded.state_dict()), dict(model.state_dict()))
    same_tree(*(vars(chunk(m, two_views)[1]) for m in (model, loaded)))
    stated = read_json(tmp_path / "model" / "config.json")["observation"]
    assert list(stated["cameras"]) == ["image", "wrist_image"]
    assert stated["state"]["units"][:4] == ["m", "m", "m", "rad"]
    after, _ = chunk(model, two_views)
    same_tree(loaded.restore(after.state_dict()).state_dict(), after.state_dict())


def test_weights_of_one_view_take_further_views_and_the_state(make_wan, wan_config, two_views, same_tree):
    held = make_wan()
    two = held.extended(wan_config(**NAMES), seed=0)
    for name, value in held.trained().items():
        assert torch.equal(two.trained()[name], value), name
    three = two.extended(wan_config(cameras=(*NAMES["cameras"], "left_image"), state="measured"), seed=0)
    embeddings = [m.dynamics.transformer.patch_embedding.view_embedding for m in (two, three)]
    assert torch.equal(embeddings[1][:2], embeddings[0])
    assert two.extended(wan_config(sampling_steps=3, **NAMES), seed=0) is two
    assert two.config.dynamics.sampling_steps == 3
    assert chunk(two, two_views)[1].state.shape == (2, 4, 8)


def test_a_policy_of_two_cameras_and_the_state_collects(model, two_views):
    """Every observation that it gets is the model's: both views as decoded, and the state that the model predicts."""
    sizes = {
        "image_size": 16,
        "width": 8,
        "blocks": 1,
        "keypoints": 4,
        "text_width": 8,
        "hidden": 16,
        "chunk_length": 4,
    }
    ones, state = torch.ones(7), torch.ones(8)
    statistics = PolicyStatistics(-ones, ones, 0 * ones, ones, state_mean=0 * state, state_std=state)
    with initial_weights(0, "policy"):
        policy = TokenPolicy(TokenPolicyConfig(**sizes, cameras=list(NAMES["cameras"]), state="measured"), statistics)
    records = starts(model, two_views[:2])
    env = WorldModelVecEnv(model, ResetStore(records), SuccessRule(0.99, 2), num_envs=2, horizon=8)
    obs, _ = env.reset(seed=0)
    assert obs["image"].shape == obs["wrist_image"].shape == (2, 16, 16, 3)
    first = {record.state.tobytes() for record in records}
    assert {row.tobytes() for row in obs["state"]} <= first
    obs, *_ = env.chunk_step(np.zeros((2, 4, 7), np.float32))
    state = model.restore({k: torch.as_tensor(v) for k, v in env._state.state_dict().items()})
    sheet = state.memory[:, -1].numpy()
    np.testing.assert_array_equal(np.concatenate([obs["image"], obs["wrist_image"]], axis=1), sheet)
    np.testing.assert_array_equal(obs["state"], state.measured.numpy())
    rows = WorldModelVecEnv(
        model, ResetStore(records), SuccessRule(0.99, 2), num_envs=4, horizon=8, autoreset_mode="Disabled"
    )
    rollouts = imagine_rollouts(rows, policy, records, group_size=2, seed=3, exploration=Exploration())
    assert rollouts.more["wrist_image"].shape[1:] == (4, 16, 16, 3)
    assert rollouts.more["state"].shape[1:] == (4, 8)


def test_a_record_without_state_and_cameras_that_do_not_fit_are_refused(model, two_views, wan_config, wan_record):
    with pytest.raises(ActionError, match="give its state"):
        chunk(model, two_views, state=None)
    with pytest.raises(SettingError, match=r"4 memory images of 32 by 16, got .*of its cameras"):
        model.start([wan_record()])
    plain = wan_config().to_json()
    for cameras in ([], ["wrist_image"], ["image", "image"], ["image", "wrist"]):
        with pytest.raises(SettingError, match=r"wan\.model\.cameras"):
            WanConfig.from_json({**plain, "cameras": cameras})
    with pytest.raises(SettingError, match="measured"):
        WanConfig.from_json({**plain, "state": "measure"})
