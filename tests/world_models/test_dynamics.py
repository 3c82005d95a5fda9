"""What holds of both dynamics backends, and what only one of them promises: refinement, frame-by-frame sampling."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from worldrl.core.rng import initial_weights, stream
from worldrl.world_models.video import unet as unet_module
from worldrl.world_models.video.codec import quantise, to_uint8, to_unit
from worldrl.world_models.video.config import DynamicsConfig, UNetConfig
from worldrl.world_models.video.flow_transformer import FlowTransformer
from worldrl.world_models.video.unet import EdmUNet

SHAPES = {"flow_transformer": (4, 4, 4), "edm_unet": (3, 8, 8)}
SIZES = {
    "width": 32,
    "depth": 2,
    "heads": 2,
    "unet": UNetConfig(channels=16, levels=2, blocks=1, condition=32, heads=2),
}


def build(kind, *, seed=0, shake=0.0, unet=None, **over):
    """Make a small backend of its own kind of latents."""
    sizes = {"chunk_length": 4, "memory_frames": 2, **SIZES}
    if unet is not None:
        sizes["unet"] = UNetConfig(**{**vars(SIZES["unet"]), **unet})
    config = DynamicsConfig(kind=kind, **{**sizes, **over})
    with initial_weights(seed, "dynamics"):
        made = (
            EdmUNet(config, SHAPES[kind], pixels=True) if kind == "edm_unet" else FlowTransformer(config, SHAPES[kind])
        )
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(shake * torch.randn_like(parameter))
    return made


def given(dynamics, kind, rows=3, name="given"):
    """Noise, reference, memory and actions of a chunk, in the order of ``sample``."""
    draw, config, shape = stream(0, name), dynamics.config, SHAPES[kind]
    noise = torch.randn(rows, dynamics.noise_frames, *shape, generator=draw)
    reference, *memory = (0.5 * torch.randn(rows, *shape, generator=draw) for _ in range(1 + config.memory_frames))
    return noise, reference, torch.stack(memory, dim=1), torch.randn(rows, config.chunk_length, 14, generator=draw)


# --- both ----------------------------------------------------------------------------------------------------------


def test_one_clip_is_learned_by_heart(kind):
    """The sampled chunk comes far closer to the clip than a still image does, and the loss falls far below its start."""
    dynamics = build(kind, motion_weight=0.0)
    _, reference, memory, action = given(dynamics, kind, rows=1)
    clean = (memory[:, -1:] + 0.5 * torch.randn(1, 2, *SHAPES[kind], generator=stream(0, "clip"))).clamp(-1, 1)
    clip = (reference, memory, action)
    still = (memory[:, -1:] - clean).square().mean().item()
    optimizer = torch.optim.Adam(dynamics.parameters(), lr=4e-3)
    losses = []
    for step in range(100):
        many = [part.expand(4, *part.shape[1:]) for part in (clean, torch.ones(1, 2, dtype=torch.bool), *clip)]
        told = dynamics.loss(*many, generator=stream(0, "overfit", step))
        optimizer.zero_grad()
        told.loss.backward()
        optimizer.step()
        losses.append(told.loss.item())
    with torch.no_grad():
        noise = torch.randn(1, dynamics.noise_frames, *SHAPES[kind], generator=stream(0, "noise"))
        sampled, _ = dynamics.sample(noise, *clip)
    assert sum(losses[-10:]) < 0.2 * sum(losses[:10])
    assert (sampled - clean).square().mean().item() < 0.1 * still


def test_features_feed_the_heads_and_levels_lie_between_nothing_and_everything(kind):
    dynamics = build(kind, shake=0.1)
    noise, *clip = given(dynamics, kind)
    latent, features = dynamics.sample(noise, *clip)
    assert latent.dtype == torch.float32
    assert latent.shape == (3, 2, *SHAPES[kind])
    assert (features.shape[0], features.shape[2]) == (3, dynamics.width)
    assert dynamics.width % dynamics.heads == 0
    told = dynamics.loss(latent, torch.ones(3, 2, dtype=torch.bool), *clip, generator=stream(0, "loss"))
    assert told.features.shape == features.shape
    assert told.level.shape in ((3, 1), (3, 2))
    assert 0 < told.level.min() <= told.level.max() <= 1


def test_the_loss_reads_valid_frames_only(kind):
    dynamics = build(kind, shake=0.1, motion_weight=0.0)
    noise, *clip = given(dynamics, kind)
    latent, _ = dynamics.sample(noise, *clip)
    valid = torch.tensor([[True, False], [True, True], [False, False]])

    def loss(valid):
        return dynamics.loss(latent, valid, *clip, generator=stream(0, "loss")).loss

    one_by_one = [loss(valid & torch.nn.functional.one_hot(torch.tensor(n), 6).bool().view(3, 2)) for n in range(6)]
    torch.testing.assert_close(sum(one_by_one), loss(valid))
    assert loss(torch.zeros_like(valid)) == 0


# --- flow transformer: refinement -------------------------------------------------------------------------------------


def test_refinement_makes_the_finished_sample_noisy_and_cleans_it(monkeypatch):
    """With 0 steps nothing changes; with 2 the network is asked again at σ_min^(1/2) and σ_min, and has the last word."""
    plain, refined = (build("flow_transformer", shake=0.2, refinement_steps=n, refinement_sigma=0.01) for n in (0, 2))
    noise, *clip = given(refined, "flow_transformer")
    assert (plain.noise_frames, refined.noise_frames) == (2, 6)
    first, _ = plain.sample(noise[:, :2], *clip)
    asked = []
    true = refined.forward

    def forward(x, sigma, *rest):
        clean, features = true(x, sigma, *rest)
        asked.append((x, sigma, clean))
        return clean, features

    monkeypatch.setattr(refined, "forward", forward)
    last, _ = refined.sample(noise, *clip)
    assert [sigma[0].item() for _, sigma, _ in asked] == pytest.approx([1, 0.5, 0.1, 0.01])
    torch.testing.assert_close(asked[2][0], 0.9 * first + 0.1 * noise[:, 2:4])
    torch.testing.assert_close(asked[3][0], 0.99 * asked[2][2] + 0.01 * noise[:, 4:])
    assert torch.equal(last, asked[3][2])
    assert not torch.equal(last, first)


def test_refinement_levels_are_learned_only_where_refinement_is_on():
    def levels(**over):
        dynamics = build("flow_transformer", **over)
        _, *clip = given(dynamics, "flow_transformer", rows=400)
        clean = torch.zeros(400, 2, *SHAPES["flow_transformer"])
        valid = torch.ones(400, 2, dtype=torch.bool)
        return dynamics.loss(clean, valid, *clip, generator=stream(0, "loss")).level

    plain = levels()
    assert torch.equal(levels(refinement_sigma=0.3, refinement_share=1.0), plain)
    assert sorted(levels(refinement_steps=2, refinement_sigma=0.01, refinement_share=1.0).unique().tolist()) == pytest.approx([0.01, 0.1])  # fmt: skip


# --- U-Net: frame by frame -------------------------------------------------------------------------------------------


def test_size_and_work_are_diamonds():
    """4,406,851 parameters and 18.27 GFLOP per 64-pixel frame, as counted on the original with its 18 actions."""
    with initial_weights(0, "dynamics"):
        dynamics = EdmUNet(DynamicsConfig(kind="edm_unet", chunk_length=2), (3, 64, 64), pixels=True)
    assert sum(p.numel() for p in dynamics.parameters()) == pytest.approx(4_406_851, rel=0.01)
    draw = stream(0, "given")
    frames = torch.randn(1, 6, 3, 64, 64, generator=draw)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        dynamics.sample(frames[:, :1], frames[:, 1], frames[:, 2:], torch.randn(1, 2, 14, generator=draw))
    assert counter.get_total_flops() == pytest.approx(18.27e9, rel=0.01)


def test_levels_and_noise_are_diamonds():
    """The constants of its published configuration: of training levels, offset noise, preconditioning and sampler."""
    published = {
        "sigma_data": 0.5, "offset_noise": 0.3, "log_sigma_mean": -0.4, "log_sigma_std": 1.2, "sigma_low": 2e-3,
        "sigma_high": 20.0, "sigma_start": 5.0, "rho": 7.0, "sampling_steps": 3, "order": 1,
    }  # fmt: skip
    own = UNetConfig()
    assert {name: getattr(own, name) for name in published} == published


@pytest.fixture
def unet():
    return build("edm_unet", shake=0.1, chunk_length=8)


def test_a_frame_follows_from_the_frames_before_it_and_its_own_actions(unet):
    noise, reference, memory, action = given(unet, "edm_unet")
    plain, _ = unet.sample(noise, reference, memory, action)
    changed = action.clone()
    changed[:, 4] += 3  # the first of the two actions that lead to the third frame
    other, _ = unet.sample(noise, reference, memory, changed)
    assert torch.equal(other[:, :2], plain[:, :2])
    assert not torch.equal(other[:, 2], plain[:, 2])
    assert not torch.equal(other[:, 3], plain[:, 3])


def test_chunk_by_chunk_is_all_at_once(unet):
    """Four frames in one chunk are two chunks of two, whatever lies between: the newest frames are all that is carried."""
    short = build("edm_unet", shake=0.1, chunk_length=4)
    short.load_state_dict(unet.state_dict() | {"frame": unet.frame[:2]})
    noise, reference, memory, action = given(unet, "edm_unet")
    whole, features = unet.sample(noise, reference, memory, action)
    first, _ = short.sample(noise[:, :2], reference, memory, action[:, :4])
    carried = torch.cat([memory, first], dim=1)[:, -2:]
    second, seen = short.sample(noise[:, 2:], reference, carried, action[:, 4:])
    assert torch.equal(torch.cat([first, second], dim=1), whole)
    n = features.shape[1] // 4
    torch.testing.assert_close(features[:, -n:] - unet.frame[3], seen[:, -n:] - unet.frame[1])


def test_finished_frames_are_images(unet):
    noise, *clip = given(unet, "edm_unet")
    frames, _ = unet.sample(noise, *clip)
    assert torch.equal(frames, quantise(frames))
    assert torch.equal(frames, to_unit(to_uint8(frames)))
    assert frames.abs().max() <= 1
    unet.pixels = False
    loose, _ = unet.sample(noise, *clip)
    assert not torch.equal(loose, quantise(loose))


def test_training_continues_from_its_own_detached_estimates(unet, monkeypatch):
    noise, reference, memory, action = given(unet, "edm_unet")
    clean, _ = unet.sample(noise, reference, memory, action)
    seen, true = [], unet.forward

    def forward(x, sigma, past, steps):
        estimate, features = true(x, sigma, past, steps)
        seen.append((past.detach(), past.requires_grad, estimate.detach()))
        return estimate, features

    monkeypatch.setattr(unet, "forward", forward)
    unet.loss(clean, torch.ones(3, 4, dtype=torch.bool), reference, memory, action, generator=stream(0, "loss"))
    own = torch.stack([quantise(estimate) for _, _, estimate in seen], dim=1)
    context = torch.cat([memory, own], dim=1)
    for number, (past, grad, _) in enumerate(seen):
        expected = torch.cat([reference, context[:, number : number + 2].flatten(1, 2)], dim=1)
        assert torch.equal(past, expected)
        assert not grad


def test_heuns_steps_cost_one_evaluation_more_but_the_last_and_sample_otherwise(monkeypatch):
    counts, samples = [], []
    for order in (1, 2):
        dynamics = build("edm_unet", shake=0.1, unet={"order": order, "sampling_steps": 3})
        calls, true = [], dynamics.forward
        monkeypatch.setattr(dynamics, "forward", lambda *a, true=true, calls=calls: (calls.append(a[1][0].item()), true(*a))[1])  # fmt: skip
        samples.append(dynamics.sample(*given(dynamics, "edm_unet"))[0])
        counts.append(calls)
    assert [len(calls) for calls in counts] == [2 * 3, 2 * 5]
    assert counts[0][:3] == pytest.approx([5, 0.2831, 2e-3], rel=1e-3)
    assert counts[1][:5] == pytest.approx([5, 0.2831, 0.2831, 2e-3, 2e-3], rel=1e-3)
    assert not torch.equal(*samples)


def test_a_few_rows_at_a_time_are_all_rows(unet, monkeypatch):
    """On a CPU rows are sampled in parts that fit its cache; that is a matter of speed alone."""
    unet.pixels = False
    parts = given(unet, "edm_unet", rows=5)
    monkeypatch.setattr(unet_module, "CACHE", 2 * 4 * 16 * 8 * 8)
    counts, true = [], unet.forward
    monkeypatch.setattr(unet, "forward", lambda x, *rest: (counts.append(len(x)), true(x, *rest))[1])
    in_parts = unet.sample(*parts)
    assert counts == [2] * 12 + [2] * 12 + [1] * 12
    monkeypatch.setattr(unet_module, "CACHE", 2**30)
    torch.testing.assert_close(unet.sample(*parts), in_parts, atol=1e-5, rtol=1e-5)
    assert counts[36:] == [5] * 12
