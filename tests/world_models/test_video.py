"""VideoWorldModel as a simulator, with either backend: refusals, row independence, bits, folders."""

import copy

import numpy as np
import pytest
import torch

from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import ActionError, ArtefactError, NonFiniteError, SettingError
from worldrl.core.rng import row_streams
from worldrl.world_models.video.codec import IdentityCodec, PatchCodec
from worldrl.world_models.video.config import (
    CodecConfig,
    DynamicsConfig,
    DynamicsKind,
    UNetConfig,
    VideoWorldModelConfig,
)
from worldrl.world_models.video.flow_transformer import FlowTransformer
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.unet import EdmUNet


@pytest.fixture
def world_model(make_world_model, kind):
    """A tiny world model of either backend."""
    return make_world_model(kind=kind)


@pytest.fixture
def start(world_model, make_record):
    """A state of four different rows and their actions."""
    state = world_model.start([make_record(grey) for grey in (20, 90, 160, 230)])
    action = torch.rand(4, 4, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return state, action


def streams(rows=4, seed=0):
    return row_streams(seed, ("test",), rows)


def test_shapes_and_exact_commands(world_model, start, robot):
    state, action = start
    after, imagined = world_model.imagine(state, action, generators=streams())
    assert imagined.latent.shape == (4, 2, *world_model.codec.latent_shape)
    assert imagined.frame_steps == (2, 4)
    assert imagined.success_prob.shape == (4, 2)
    assert ((imagined.success_prob > 0) & (imagined.success_prob < 1)).all()
    torch.testing.assert_close(imagined.command, integrate_commands(robot, state.command, action))
    torch.testing.assert_close(after.command, imagined.command[:, -1])
    torch.testing.assert_close(after.memory, imagined.latent)  # two frames of memory, two frames a chunk
    torch.testing.assert_close(after.reference, state.reference)
    newest = world_model.decode_newest(after, 1)
    assert (newest.shape, newest.dtype) == ((4, 1, 16, 16, 3), torch.uint8)
    frames = world_model.decode(imagined.latent, state.first)
    torch.testing.assert_close(newest, frames[:, -1:])
    torch.testing.assert_close(world_model.decode_newest(after, 2), frames)


def test_rows_of_one_record_are_encoded_once_and_start_alike(world_model, make_record, monkeypatch):
    one, other = make_record(20), make_record(230)
    encoded = []
    encode = world_model.codec.encode
    monkeypatch.setattr(world_model.codec, "encode", lambda frames: encoded.append(len(frames)) or encode(frames))
    state = world_model.start([other, one, one, other])
    assert encoded == [2]
    for got, record in zip(range(4), (other, one, one, other), strict=True):
        alone = world_model.start([record])
        for name in ("memory", "reference", "first", "command", "instruction"):
            torch.testing.assert_close(getattr(state, name)[got], getattr(alone, name)[0])


def test_memory_keeps_the_newest_frames(make_world_model, make_record, kind):
    model = make_world_model(memory_frames=3, kind=kind)
    picture = np.zeros((3, 16, 16, 3), np.uint8)
    picture[:] = np.array([10, 120, 240])[:, None, None, None]
    state = model.start([make_record(5, memory=picture)])
    after, imagined = model.imagine(state, torch.zeros(1, 4, 7), generators=streams(1))
    torch.testing.assert_close(after.memory, torch.cat([state.memory[:, -1:], imagined.latent], dim=1))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_are_refused_by_name(world_model, start, same_tree, bad):
    state, action = start
    before, generators = copy.deepcopy(state.state_dict()), streams()
    drawn = [g.get_state() for g in generators]
    action[2, 1, 5] = bad
    with pytest.raises(ActionError, match=r"action\[2, 1, 5\] is (nan|inf); state unchanged"):
        world_model.imagine(state, action, generators=generators)
    same_tree(state.state_dict(), before)
    assert all(torch.equal(g.get_state(), old) for g, old in zip(generators, drawn, strict=True))


def test_bad_shapes_dtypes_and_generators_are_refused(world_model, start):
    state, action = start
    for wrong in (action[:3], action[:, :3], action[..., :6], action.double()):
        with pytest.raises(ActionError, match=r"must be float32 \(4, 4, 7\)"):
            world_model.imagine(state, wrong, generators=streams())
    with pytest.raises(ActionError, match="one generator per row: 4, got 3"):
        world_model.imagine(state, action, generators=streams(3))


def test_imagining_leaves_the_old_state_alone(world_model, start, same_tree):
    state, action = start
    before = copy.deepcopy(state.state_dict())
    world_model.imagine(state, action, generators=streams())
    same_tree(state.state_dict(), before)


def test_damaged_weights_are_an_error_that_leaves_the_state_alone(make_world_model, kind, start, same_tree):
    model, (state, action) = make_world_model(kind=kind), start
    with torch.no_grad():
        for name in ("tokens_out.weight", "conv_out.weight"):
            dict(model.dynamics.named_parameters()).get(name, torch.empty(1)).fill_(torch.nan)
    before = copy.deepcopy(state.state_dict())
    with pytest.raises(NonFiniteError, match="non-finite latents, first in row 0"):
        model.imagine(state, action, generators=streams())
    same_tree(state.state_dict(), before)


def test_same_generators_same_bits_other_generators_other_imagined_rollouts(world_model, start):
    state, action = start
    one, two, other = (world_model.imagine(state, action, generators=streams(seed=s))[1].latent for s in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.allclose(one, other, atol=1e-2)


def test_permuted_rows_give_permuted_imagined_rollouts(world_model, start):
    state, action = start
    order = torch.tensor([2, 0, 3, 1])
    _, plain = world_model.imagine(state, action, generators=streams())
    generators = [streams()[i] for i in order.tolist()]
    _, permuted = world_model.imagine(state.select(order), action[order], generators=generators)
    for name in ("latent", "command", "success_prob"):
        torch.testing.assert_close(getattr(permuted, name), getattr(plain, name)[order], atol=1e-5, rtol=1e-5)


def test_a_neighbour_changes_nothing_and_company_hardly_a_bit(world_model, start):
    state, action = start
    _, plain = world_model.imagine(state, action, generators=streams())
    changed = action.clone()
    changed[0] = -action[0]
    _, beside = world_model.imagine(state, changed, generators=[streams(seed=9)[0], *streams()[1:]])
    assert not torch.allclose(beside.latent[0], plain.latent[0], atol=1e-3)
    assert torch.equal(beside.latent[1:], plain.latent[1:])  # the same sums in the same order
    world_model.dynamics.pixels = False  # rounding to 8 bits may turn a last bit into a whole level
    _, plain = world_model.imagine(state, action, generators=streams())
    _, alone = world_model.imagine(state.select(torch.tensor([2])), action[2:3], generators=streams()[2:3])
    torch.testing.assert_close(alone.latent[0], plain.latent[2], atol=1e-5, rtol=1e-5)


def test_in_bfloat16_a_row_knows_no_neighbours_either(make_world_model, make_record):
    """Bit-equal at equal batch size; across sizes the sums may round otherwise, by no more than bfloat16 itself rounds."""
    model = make_world_model(kind="flow_transformer")
    state = model.start([make_record(grey) for grey in (20, 90, 160, 230)])
    action = torch.rand(4, 4, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    _, full = model.imagine(state, action, generators=streams())
    model.compute_dtype = torch.bfloat16
    _, plain = model.imagine(state, action, generators=streams())
    changed = torch.cat([-action[:1], action[1:]])
    _, beside = model.imagine(state, changed, generators=[streams(seed=9)[0], *streams()[1:]])
    assert not torch.allclose(beside.latent[0], plain.latent[0], atol=1e-2)
    assert torch.equal(beside.latent[1:], plain.latent[1:])
    assert torch.equal(beside.success_prob[1:], plain.success_prob[1:])
    rounding = (plain.latent - full.latent).abs().max()
    for rows in ([2], [2, 0, 3, 1], [3, 1]):
        index = torch.tensor(rows)
        _, other = model.imagine(state.select(index), action[index], generators=[streams()[row] for row in rows])
        assert (other.latent - plain.latent[index]).abs().max() <= rounding


def test_actions_and_reference_matter_unless_switched_off(make_world_model, make_record, kind):
    def differences(**switches):
        model = make_world_model(spread=0.4, kind=kind, **switches)
        records = [make_record(100), make_record(100, reference=np.full((16, 16, 3), 250, np.uint8))]
        state = model.start(records)
        zero = torch.zeros(1, 4, 7)
        moved = zero.clone()
        moved[:, 2, 0] = 1
        first, other = state.select(torch.tensor([0])), state.select(torch.tensor([1]))
        plain = model.imagine(first, zero, generators=streams(1))[1].latent
        acted = model.imagine(first, moved, generators=streams(1))[1].latent
        referred = model.imagine(other, zero, generators=streams(1))[1].latent
        return (acted - plain).abs().max().item(), (referred - plain).abs().max().item()

    ablations = [{"action_tokens": False}, {"action_modulation": False}] if kind == "flow_transformer" else []
    for switches in ({}, *ablations):
        assert min(differences(**switches)) > 1e-3
    acted, referred = differences(reference=False)
    assert acted > 1e-3
    assert referred == 0


def test_bfloat16_imagined_rollouts_stay_close_and_states_stay_float32(make_world_model, make_record, kind):
    model = make_world_model(spread=0.05, kind=kind)
    state = model.start([make_record(20), make_record(200)])
    action = torch.zeros(2, 4, 7)
    _, full = model.imagine(state, action, generators=streams(2))
    model.compute_dtype = torch.bfloat16
    after, half = model.imagine(state, action, generators=streams(2))
    assert {value.dtype for name, value in after.state_dict().items() if name != "first"} == {torch.float32}
    assert 0 < (half.latent - full.latent).abs().max() < 0.1
    assert model.decode_newest(after, 1).dtype == torch.uint8


def test_a_state_can_be_saved_and_restored(world_model, start, same_tree):
    state, action = start
    after, _ = world_model.imagine(state, action, generators=streams())
    data = copy.deepcopy(after.state_dict())
    one = world_model.imagine(after, action, generators=streams(seed=1))[1]
    two = world_model.imagine(world_model.restore(data), action, generators=streams(seed=1))[1]
    same_tree(vars(one), vars(two))
    with pytest.raises(ActionError, match="memory must be"):
        world_model.restore({**data, "memory": data["memory"][:, :1]})


# -- folder ------------------------------------------------------------------------------------------------------


def test_saved_and_loaded_is_the_same_model(world_model, start, same_tree, tmp_path):
    state, action = start
    world_model.save(tmp_path / "model")
    loaded = VideoWorldModel.load(tmp_path / "model")
    assert (loaded.config, loaded.embodiment) == (world_model.config, world_model.embodiment)
    assert not loaded.training
    same_tree(dict(loaded.state_dict()), dict(world_model.state_dict()))
    policy_rollouts = [model.imagine(state, action, generators=streams())[1] for model in (world_model, loaded)]
    same_tree(vars(policy_rollouts[0]), vars(policy_rollouts[1]))


def test_half_precision_on_the_disk(world_model, tmp_path):
    world_model.save(tmp_path / "full")
    world_model.save(tmp_path / "half", store_dtype=torch.float16)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "half")]
    assert sizes[1] < 0.7 * sizes[0]
    loaded = VideoWorldModel.load(tmp_path / "half").state_dict()
    for name, value in world_model.state_dict().items():
        assert loaded[name].dtype == torch.float32
        assert torch.equal(loaded[name], value.half().float())


def test_folders_of_another_kind_or_shape_are_refused(world_model, tiny_policy, tmp_path, monkeypatch):
    tiny_policy().save(tmp_path / "policy")
    with pytest.raises(ArtefactError, match="video-world-model"):
        VideoWorldModel.load(tmp_path / "policy")
    with pytest.raises(ArtefactError):
        VideoWorldModel.load(tmp_path / "nothing")
    plain = world_model.config.to_json()
    for change in ({"memory_frames": 3}, {"unheard_of": 1}):
        config = {**plain, "dynamics": {**plain["dynamics"], **change}}
        monkeypatch.setattr(VideoWorldModelConfig, "to_json", lambda _, config=config: config)
        world_model.save(tmp_path / "odd")
        with pytest.raises(ArtefactError, match="do not fit"):
            VideoWorldModel.load(tmp_path / "odd")
        monkeypatch.undo()


def test_config_survives_json(world_model):
    assert VideoWorldModelConfig.from_json(world_model.config.to_json()) == world_model.config


def test_a_folder_older_than_the_backends_holds_the_flow_transformer():
    """The bundled weights are one: no kind, no U-Net, no refinement."""
    plain = VideoWorldModelConfig(dynamics=DynamicsConfig(width=96)).to_json()
    del plain["codec"]["kind"]
    for name in ("kind", "unet", "refinement_steps", "refinement_sigma", "refinement_share"):
        del plain["dynamics"][name]
    config = VideoWorldModelConfig.from_json(plain)
    assert (config.dynamics.kind, config.dynamics.width) == (DynamicsKind.flow_transformer, 96)
    assert config.dynamics.refinement_steps == 0


def test_a_kind_brings_its_codec_unless_another_is_asked_for(make_world_model):
    def parts(**over):
        model = make_world_model(**over)
        return type(model.dynamics), type(model.codec)

    assert parts() == (FlowTransformer, PatchCodec)
    assert parts(kind="edm_unet") == (EdmUNet, IdentityCodec)
    assert parts(kind="edm_unet", codec={"kind": "patch"}) == (EdmUNet, PatchCodec)
    assert parts(codec={"kind": "identity"}) == (FlowTransformer, IdentityCodec)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DynamicsConfig(chunk_length=5), "frame_stride"),
        (lambda: DynamicsConfig(width=15), "heads"),
        (lambda: DynamicsConfig(action_tokens=False, action_modulation=False), "both are off"),
        (lambda: DynamicsConfig(kind="edm_unit"), "did you mean 'edm_unet'"),
        (lambda: DynamicsConfig(refinement_steps=-1), "refinement_steps"),
        (lambda: DynamicsConfig(refinement_sigma=0.0), "refinement_sigma"),
        (lambda: DynamicsConfig(refinement_share=1.5), "refinement_share"),
        (lambda: DynamicsConfig(kind="edm_unet", refinement_steps=2), "refinement_steps is the flow transformer's"),
        (lambda: DynamicsConfig(kind="edm_unet", pose_map=False), "pose_map is the flow transformer's"),
        (lambda: CodecConfig(kind="pixel"), "codec.kind"),
        (lambda: UNetConfig(channels=48), "multiple of 32"),
        (lambda: UNetConfig(channels=30), "unet.heads"),
        (lambda: UNetConfig(levels=0), "unet.levels"),
        (lambda: UNetConfig(sigma_low=5.0), "sigma_low"),
        (lambda: UNetConfig(order=3), "unet.order"),
        (lambda: VideoWorldModelConfig(CodecConfig(image_size=20, patch=4), DynamicsConfig(kind="edm_unet")), "levels"),
    ],
)
def test_impossible_configurations_are_refused_by_name(make, text):
    with pytest.raises(SettingError, match=text):
        make()
