"""WanWorldModel as a simulator: codec, refusals, row independence, bits, folders, environment."""

import copy
import shutil

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import ActionError, ArtefactError, NonFiniteError, SettingError
from worldrl.core.rng import row_streams
from worldrl.policies.exploration import Exploration
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore, record_at
from worldrl.rollout.imagined.rollouts import imagine_rollouts
from worldrl.world_models.loading import open_world_model
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.wan.config import (
    WanCodecConfig,
    WanConfig,
    WanDynamicsConfig,
    WanOutcomeConfig,
    WanSuccessConfig,
)
from worldrl.world_models.wan.model import WanWorldModel

pytest.importorskip("diffusers")
pytest.importorskip("peft")


@pytest.fixture
def start(wan_model, wan_record):
    """A state of four different rows and their actions."""
    state = wan_model.start([wan_record(grey) for grey in (20, 90, 160, 230)])
    action = torch.rand(4, 4, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return state, action


def streams(rows=4, seed=0):
    return row_streams(seed, ("test",), rows)


# -- codec -----------------------------------------------------------------------------------------------------------


def test_latents_depend_on_the_past_alone(wan_model, push_episode):
    frames = torch.from_numpy(push_episode(0, 12).frames[None, :, 0])  # [1, 13, 16, 16, 3]
    clip, context = wan_model.codec.encode(frames), wan_model.codec.encode(frames[:, :5])
    assert clip.shape == (1, 4, 4, 4, 4)
    assert torch.equal(clip[:, :2], context)
    changed = frames.clone()
    changed[:, 9:] = 0
    assert torch.equal(wan_model.codec.encode(changed)[:, :3], clip[:, :3])
    assert wan_model.codec.decode(clip).shape == frames.shape


def test_published_normalisation_and_two_stages_of_compression(publish_wan, tmp_path, make_wan):
    """Wan2.2's autoencoder: residual, with a patch of its own."""
    vae = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12, "decoder_base_dim": 12}
    model = make_wan(base=publish_wan(tmp_path / "wan", vae=vae), size=32)
    frames = torch.randint(0, 256, (2, 9, 32, 32, 3), dtype=torch.uint8)
    latent = model.codec.encode(frames)
    assert latent.shape == (2, 3, 4, 4, 4)
    video = frames.movedim(-1, 1).float() / 127.5 - 1
    raw = model.codec.vae.encode(video).latent_dist.mode().transpose(1, 2)
    mean, std = (torch.tensor(model.codec.vae.config[f"latents_{k}"])[:, None, None] for k in ("mean", "std"))
    torch.testing.assert_close(latent * std + mean, raw, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(torch.cat([model.codec.encode(frames[i : i + 1]) for i in (0, 1)]), latent)


def test_frames_that_do_not_fit_are_refused(wan_model, wan_record, make_wan):
    for shape in ((1, 8, 16, 16, 3), (1, 5, 32, 32, 3)):
        with pytest.raises(SettingError, match=r"frames must be \[B, 1 \+ 4k, 16, 16, 3\]"):
            wan_model.codec.encode(torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(SettingError, match="4 memory images of 16 by 16"):
        wan_model.start([wan_record(memory=np.zeros((2, 16, 16, 3), np.uint8))])
    with pytest.raises(SettingError, match=r"memory_action must be \[4, 7\]"):
        wan_model.start([wan_record(memory_action=np.zeros((3, 7), np.float32))])
    with pytest.raises(SettingError, match="multiple of 4"):
        make_wan(size=18)


# -- rollout ---------------------------------------------------------------------------------------------------------


def test_shapes_exact_commands_and_what_is_remembered(wan_model, start, robot):
    state, action = start
    after, imagined = wan_model.imagine(state, action, generators=streams())
    assert imagined.latent.shape == (4, 3, 4, 4, 4)
    assert imagined.frame_steps == (1, 2, 3, 4)
    assert imagined.success_prob.shape == (4, 4)
    assert ((imagined.success_prob > 0) & (imagined.success_prob < 1)).all()
    torch.testing.assert_close(imagined.command, integrate_commands(robot, state.command, action))
    torch.testing.assert_close(after.command, imagined.command[:, -1])
    frames = wan_model.decode(imagined.latent, state.reference)
    assert (frames.shape, frames.dtype) == ((4, 4, 16, 16, 3), torch.uint8)
    assert torch.equal(after.memory, frames)  # four frames of memory, four frames a chunk
    assert torch.equal(after.memory_action, action)
    assert torch.equal(after.reference, state.reference)
    assert torch.equal(wan_model.decode_newest(after, 2), frames[:, -2:])


def test_memory_and_its_actions_keep_the_newest(make_wan, wan_record):
    model = make_wan(memory_frames=8)
    picture = np.repeat(np.arange(8, dtype=np.uint8)[:, None, None, None], 16, axis=1)
    picture = np.repeat(np.repeat(picture, 16, axis=2), 3, axis=3)
    taken = np.linspace(-1, 1, 56, dtype=np.float32).reshape(8, 7)
    state = model.start([wan_record(5, memory=picture, memory_action=taken)])
    action = torch.full((1, 4, 7), 0.5)
    after, imagined = model.imagine(state, action, generators=streams(1))
    assert torch.equal(
        after.memory, torch.cat([state.memory[:, 4:], model.decode(imagined.latent, state.reference)], dim=1)
    )
    assert torch.equal(after.memory_action, torch.cat([state.memory_action[:, 4:], action], dim=1))


def test_without_the_anchor_the_memory_alone_begins_the_clip(make_wan, wan_record):
    """The reference's image no longer matters, not even through the autoencoder, and the memory's still does."""
    model = make_wan(reference=False)
    memory = np.stack([np.full((16, 16, 3), grey, np.uint8) for grey in (200, 150, 100, 50)])

    def imagine_policy(**over):
        state = model.start([wan_record(**{"memory": memory, **over})])
        return model.imagine(state, torch.zeros(1, 4, 7), generators=streams(1))[1].latent

    plain = imagine_policy()
    given = torch.from_numpy(np.concatenate([memory[:1], memory]))[None]
    assert torch.equal(plain[:, :2], model.codec.encode(given))
    assert torch.equal(imagine_policy(reference=np.full((16, 16, 3), 250, np.uint8)), plain)
    assert not torch.allclose(imagine_policy(memory=memory[::-1].copy()), plain, atol=1e-3)


def test_where_there_is_an_ensemble_its_verdict_on_the_whole_imagined_rollout_counts(make_wan, wan_record):
    model, plain = make_wan(ensemble_size=2), make_wan()
    action = torch.rand(2, 4, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    states = [m.start([wan_record(20), wan_record(160)]) for m in (model, plain)]
    votes, belief = [], model.outcome.blank(2)
    find = model.find

    def spy(features, instruction):
        nonlocal belief
        found = find(features, instruction)
        vote, belief = model.outcome(found, belief)
        votes.append(vote)
        return found

    model.find = spy
    for chunk in range(2):
        generators = [streams(2, seed=chunk) for _ in states]
        (states[0], judged), (states[1], joint) = (
            m.imagine(s, action, generators=g) for m, s, g in zip((model, plain), states, generators, strict=True)
        )
        probability = torch.sigmoid(votes[chunk])
        torch.testing.assert_close(judged.success_prob, probability.mean(dim=0))
        torch.testing.assert_close(judged.uncertainty, (probability[0] - probability[1]).abs() / 2)
        torch.testing.assert_close(states[0].belief, belief)
        assert joint.uncertainty is None
        assert states[1].belief.shape == (2, 0)
    assert not torch.allclose(
        votes[0], votes[1], atol=1e-3
    )  # the second chunk is predicted with what the first has left


def test_stride_gives_fewer_frames_and_more_actions_behind_each(make_wan, wan_record):
    model = make_wan(chunk_length=8, frame_stride=2)
    assert (model.config.dynamics.group_actions, model.config.dynamics.clip_actions) == (8, 17)
    state = model.start([wan_record()])
    _, imagined = model.imagine(state, torch.zeros(1, 8, 7), generators=streams(1))
    assert imagined.frame_steps == (2, 4, 6, 8)
    assert imagined.latent.shape[1] == 3


def test_records_bring_the_actions_behind_their_memory(push_episode):
    episode = push_episode(1, 16)
    taken = record_at(episode, 2, memory_frames=4, frame_stride=1, source="x").memory_action
    null = [0, 0, 0, 0, 0, 0, -1]
    assert taken[:2].tolist() == [null, null]
    assert np.array_equal(taken[2:], episode.action[:2])
    taken = record_at(episode, 11, memory_frames=2, frame_stride=2, source="x").memory_action
    assert np.array_equal(taken, episode.action[7:11])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_are_refused_by_name(wan_model, start, same_tree, bad):
    state, action = start
    before, generators = copy.deepcopy(state.state_dict()), streams()
    drawn = [g.get_state() for g in generators]
    action[2, 1, 5] = bad
    with pytest.raises(ActionError, match=r"action\[2, 1, 5\] is (nan|inf); state unchanged"):
        wan_model.imagine(state, action, generators=generators)
    same_tree(state.state_dict(), before)
    assert all(torch.equal(g.get_state(), old) for g, old in zip(generators, drawn, strict=True))


def test_bad_shapes_and_generators_are_refused_and_so_are_damaged_weights(wan_model, make_wan, start):
    state, action = start
    for wrong in (action[:3], action[:, :3], action[..., :6], action.double()):
        with pytest.raises(ActionError, match=r"must be float32 \(4, 4, 7\)"):
            wan_model.imagine(state, wrong, generators=streams())
    with pytest.raises(ActionError, match="one generator per row: 4, got 3"):
        wan_model.imagine(state, action, generators=streams(3))
    damaged = make_wan()
    with torch.no_grad():
        damaged.dynamics.transformer.proj_out.weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="non-finite latents, first in row 0"):
        damaged.imagine(state, action, generators=streams())


def test_same_generators_same_bits_other_generators_other_imagined_rollouts(wan_model, start):
    state, action = start
    one, two, other = (wan_model.imagine(state, action, generators=streams(seed=s))[1].latent for s in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.allclose(one, other, atol=1e-2)


def test_rows_do_not_know_their_neighbours(wan_model, start):
    state, action = start
    after, plain = wan_model.imagine(state, action, generators=streams())
    changed = action.clone()
    changed[0] = -action[0]
    beside_state, beside = wan_model.imagine(state, changed, generators=[streams(seed=9)[0], *streams()[1:]])
    assert not torch.allclose(beside.latent[0, 2], plain.latent[0, 2], atol=1e-3)
    assert torch.equal(beside.latent[1:], plain.latent[1:])  # the same sums in the same order
    assert torch.equal(beside_state.memory[1:], after.memory[1:])
    order = torch.tensor([2, 0, 3, 1])
    generators = [streams()[i] for i in order.tolist()]
    _, permuted = wan_model.imagine(state.select(order), action[order], generators=generators)
    for name in ("latent", "command", "success_prob"):
        torch.testing.assert_close(getattr(permuted, name), getattr(plain, name)[order], atol=1e-5, rtol=1e-5)
    _, alone = wan_model.imagine(state.select(torch.tensor([2])), action[2:3], generators=streams()[2:3])
    torch.testing.assert_close(alone.latent[0], plain.latent[2], atol=1e-5, rtol=1e-5)


def test_actions_their_past_memory_and_reference_matter(wan_model, wan_record):
    action = torch.zeros(1, 4, 7)

    def imagine_policy(action=action, **over):
        state = wan_model.start([wan_record(100, **over)])
        return wan_model.imagine(state, action, generators=streams(1))[1].latent[:, -1]

    plain, moved = imagine_policy(), action.clone()
    moved[:, 2, 0] = 1
    others = {
        "action": imagine_policy(moved),
        "past action": imagine_policy(memory_action=np.ones((4, 7), np.float32)),
        "reference": imagine_policy(reference=np.full((16, 16, 3), 250, np.uint8)),
        "memory": imagine_policy(memory=np.full((4, 16, 16, 3), 200, np.uint8)),
    }
    changed = {name: (other - plain).abs().max().item() for name, other in others.items()}
    assert min(changed.values()) > 1e-4, changed


@pytest.mark.parametrize("ensemble_size", [0, 2])
def test_a_state_can_be_saved_and_restored(make_wan, start, same_tree, wan_record, ensemble_size):
    wan_model, action = make_wan(ensemble_size=ensemble_size), start[1]
    state = wan_model.start([wan_record(grey) for grey in (20, 90, 160, 230)])
    after, _ = wan_model.imagine(state, action, generators=streams())
    data = copy.deepcopy(after.state_dict())
    one = wan_model.imagine(after, action, generators=streams(seed=1))[1]
    two = wan_model.imagine(wan_model.restore(data), action, generators=streams(seed=1))[1]
    same_tree(vars(one), vars(two))
    with pytest.raises(ActionError, match="memory must be"):
        wan_model.restore({**data, "memory": data["memory"][:, :1]})


def test_bfloat16_imagined_rollouts_stay_close_and_weights_in_bfloat16_need_them(make_wan, wan_record):
    model, action = make_wan(spread=0.02), torch.zeros(2, 4, 7)
    records = [wan_record(20), wan_record(200)]
    _, full = model.imagine(model.start(records), action, generators=streams(2))
    model.compute_dtype = torch.bfloat16
    after, half = model.imagine(model.start(records), action, generators=streams(2))
    assert 0 < (half.latent - full.latent).abs().max() < 0.2
    assert after.instruction.dtype == torch.float32
    small = make_wan(spread=0.02, base_dtype="bfloat16")
    assert small.dynamics.transformer.proj_out.weight.dtype == torch.bfloat16
    assert {value.dtype for value in small.trained().values()} == {torch.float32}
    with pytest.raises(SettingError, match="give dtype=bfloat16"):
        small.start(records)
    small.compute_dtype = torch.bfloat16
    _, kept = small.imagine(small.start(records), action, generators=streams(2))
    assert 0 < (kept.latent - full.latent).abs().max() < 0.2


# -- folder ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [{}, {"adapter": "full"}, {"ensemble_size": 2}, {"reference": False}])
def test_saved_and_loaded_is_the_same_model(make_wan, wan_record, same_tree, tmp_path, over):
    model = make_wan(**over)
    model.save(tmp_path / "model")
    loaded = open_world_model(tmp_path / "model")
    assert isinstance(loaded, WanWorldModel)
    assert (loaded.config, loaded.embodiment) == (model.config, model.embodiment)
    assert not loaded.training
    same_tree(dict(loaded.state_dict()), dict(model.state_dict()))
    action = torch.zeros(1, 4, 7)
    policy_rollouts = [m.imagine(m.start([wan_record()]), action, generators=streams(1))[1] for m in (model, loaded)]
    same_tree(vars(policy_rollouts[0]), vars(policy_rollouts[1]))
    loaded.save(tmp_path / "again")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("model", "again")]
    assert files[0] == files[1]


def test_only_what_was_trained_is_stored(make_wan, tmp_path):
    model = make_wan()
    names = set(model.trained())
    assert {name.split(".")[0] for name in names} == {"dynamics", "success"}
    assert all(
        name.startswith("success.") or ".lora_" in name or ".condition_embedder.action_" in name for name in names
    )
    assert sum(".lora_A." in name for name in names) == 2 * 10  # two blocks of two attentions and one feed-forward
    assert names == {name for name, p in model.named_parameters() if p.requires_grad}
    judged = make_wan(ensemble_size=1)
    assert {name for name in judged.trained() if name not in names} == {
        f"outcome.{name}" for name in judged.outcome.state_dict()
    }
    everything = make_wan(adapter="full")
    assert not any(name.startswith("codec.") for name in everything.trained())
    assert all(p.requires_grad for p in everything.dynamics.parameters())
    model.save(tmp_path / "half", store_dtype=torch.bfloat16)
    model.round_trained(torch.bfloat16)
    loaded = WanWorldModel.load(tmp_path / "half")
    assert all(torch.equal(value, model.trained()[name]) for name, value in loaded.trained().items())


def test_another_base_is_refused_and_a_moved_one_can_be_named(make_wan, publish_wan, tmp_path):
    base = publish_wan(tmp_path / "base")
    model = make_wan(base=base)
    model.save(tmp_path / "model", parents=[{"path": "data", "hash": "0"}])
    parents = (tmp_path / "model" / "manifest.json").read_text()
    assert model.base_hash in parents
    moved = tmp_path / "moved"
    shutil.move(base, moved)
    with pytest.raises(ArtefactError, match=r"published weights it builds on are not at .*/base; .* hf download"):
        WanWorldModel.load(tmp_path / "model")
    WanWorldModel.load(tmp_path / "model", base=moved)
    other = publish_wan(tmp_path / "other", seed=1)
    with pytest.raises(ArtefactError, match=r"was trained on other weights than those in .*/other"):
        WanWorldModel.load(tmp_path / "model", base=other)


def test_folders_of_another_kind_or_shape_are_refused(wan_model, world_model, wan_base, wan_config, robot, tmp_path):
    world_model.save(tmp_path / "video")
    with pytest.raises(ArtefactError, match="wan-world-model"):
        WanWorldModel.load(tmp_path / "video")
    assert isinstance(open_world_model(tmp_path / "video"), VideoWorldModel)
    with pytest.raises(ArtefactError):
        open_world_model(tmp_path / "nothing")
    other = WanWorldModel.from_base(wan_base, wan_config(lora_rank=3), robot, seed=0)
    with pytest.raises(ArtefactError, match=r"lora_[AB].default.weight: is \[2, "):
        other.load_trained(wan_model.trained())
    trained = wan_model.trained()
    trained.pop(next(iter(trained)))
    with pytest.raises(ArtefactError, match="on one side only"):
        wan_model.load_trained(trained)


def test_new_weights_depend_on_the_seed_alone(wan_base, wan_config, robot):
    def weights(seed):
        torch.rand(3)  # whatever others drew
        model = WanWorldModel.from_base(wan_base, wan_config(), robot, seed=seed)
        return torch.cat([value.flatten() for value in model.trained().values()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"chunk_length": 6}, "whole groups of 4 frames"),
        ({"chunk_length": 4, "frame_stride": 2}, "multiple of 8"),
        ({"memory_frames": 6}, "memory_frames must be a multiple of 4"),
        ({"memory_frames": 0}, "memory_frames must be a multiple of 4"),
        ({"memory_noise": 1.0}, "memory_noise must be in"),
        ({"pure_noise_share": 2.0}, "pure_noise_share must be in"),
        ({"action_tokens": False, "action_modulation": False}, "both are off"),
        ({"adapter": "lorra"}, "did you mean 'lora'"),
        ({"adapter": "full", "base_dtype": "bfloat16"}, "must be float32 with adapter=full"),
    ],
)
def test_impossible_layouts_are_refused(over, message):
    with pytest.raises(SettingError, match=message):
        WanDynamicsConfig(**over)


def test_other_impossible_settings_are_refused():
    with pytest.raises(SettingError, match=r"codec\.dtype"):
        WanCodecConfig(dtype="float64")
    with pytest.raises(SettingError, match=r"codec\.rows"):
        WanCodecConfig(rows=0)
    with pytest.raises(SettingError, match=r"success\.heads must divide"):
        WanSuccessConfig(width=10, heads=4)
    with pytest.raises(SettingError, match=r"outcome\.ensemble_size must not be negative"):
        WanOutcomeConfig(ensemble_size=-1)
    config = WanConfig()
    assert WanConfig.from_json(config.to_json()) == config
    layout = config.dynamics
    assert (layout.context_latents, layout.future_latents, layout.clip_actions) == (2, 2, 13)  # WoVR's


# -- environment -----------------------------------------------------------------------------------------------------


def test_a_policy_collects(wan_model, wan_record, tiny_policy, same_tree):
    starts = [wan_record(40), wan_record(180, task="PickGreenCylinder")]
    rule = SuccessRule(0.99, 2)

    def env(**over):
        return WorldModelVecEnv(wan_model, ResetStore(starts), rule, num_envs=4, horizon=8, **over)

    def rollouts():
        rows = env(autoreset_mode=AutoresetMode.DISABLED)
        return imagine_rollouts(rows, tiny_policy(), starts, group_size=2, seed=3, exploration=Exploration())

    one = rollouts()
    assert one.image.shape == (2, 4, 16, 16, 3)
    assert one.token.shape == (2, 4, 4, 7)
    same_tree(vars(one), vars(rollouts()))
    rows = env()
    rows.reset(seed=0)
    action = np.zeros((4, 4, 7), np.float32)
    rows.chunk_step(action)
    saved = copy.deepcopy(rows.get_state())
    expected = rows.chunk_step(action)
    other = env()
    other.reset(seed=5)
    other.set_state(saved)
    same_tree(other.chunk_step(action)[0], expected[0])


def test_it_shows_a_policy_the_main_image_and_the_command(wan_model):
    shown = wan_model.observation
    assert (list(shown.cameras), shown.state) == (["image"], None)
    assert shown.cameras["image"].width == wan_model.config.codec.image_size
