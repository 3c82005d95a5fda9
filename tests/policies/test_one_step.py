"""Unit under test: ``policies/one_step.py``, and the steps of ``policies/lerobot_samplers.py`` that need no lerobot."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributions import Normal

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.policies.lerobot.one_step import draw_chunk, pack_trace, trace_log_prob, unpack_trace
from worldrl.policies.lerobot.release import served_release
from worldrl.policies.lerobot.samplers import (
    DiffusionSampler,
    FlowSampler,
    RegressionSampler,
    attention_2d,
    ddim_std,
    encode_pi0,
    encode_smolvla,
)

ALPHA = torch.linspace(0.99, 0.02, 20)


def diffusion(*, prediction="epsilon", clip=False, predict=None):
    """Diffusion Policy's parts, with a network that knows the answer: the clean chunk is 0.3 everywhere."""

    def unet(x, t, global_cond):
        alpha = ALPHA[t][:, None, None]
        clean = torch.full_like(x, 0.3) if predict is None else predict(x)
        return clean if prediction == "sample" else (x - alpha.sqrt() * clean) / (1 - alpha).sqrt()

    scheduler = SimpleNamespace(
        alphas_cumprod=ALPHA, timesteps=torch.tensor([19, 12, 6, 0]), set_timesteps=lambda n: None
    )
    model = SimpleNamespace(noise_scheduler=scheduler, num_inference_steps=4, unet=unet)
    config = SimpleNamespace(
        horizon=3,
        action_feature=SimpleNamespace(shape=(2,)),
        prediction_type=prediction,
        clip_sample=clip,
        clip_sample_range=0.2,
        image_features={},
    )
    return DiffusionSampler(SimpleNamespace(diffusion=model, config=config))


def noise(*shape, seed=0):
    return torch.randn(shape, generator=stream(seed, "noise"))


def test_a_trace_is_the_step_and_the_samples_around_it():
    own, before, after = torch.tensor([2, 0]), noise(2, 3, 4), noise(2, 3, 4, seed=1)
    found = unpack_trace(pack_trace(own, before, after), (3, 4))
    assert torch.equal(found[0], own)
    assert torch.equal(found[1], before)
    assert torch.equal(found[2], after)
    with pytest.raises(SettingError, match=r"25 numbers, got \[2, 24\]"):
        unpack_trace(torch.zeros(2, 24), (3, 4))


@pytest.mark.parametrize("prediction", ["epsilon", "sample"])
def test_ddim_lands_on_the_clean_chunk_and_its_noisy_step_is_the_papers_gaussian(prediction):
    sampler = diffusion(prediction=prediction)
    own = torch.tensor([0, 2])
    chunk, trace, logp = draw_chunk(sampler, None, noise(2, 3, 2), noise(2, 3, 2, seed=1), own, 0.7)
    torch.testing.assert_close(chunk, torch.full_like(chunk, 0.3), rtol=1e-4, atol=1e-4)
    _, before, after = unpack_trace(trace, (3, 2))
    for row, k in enumerate(own.tolist()):
        now, then = ALPHA[[19, 12, 6, 0]][k], ALPHA[[19, 12, 6, 0]][k + 1]
        std = 0.7 * ((1 - then) / (1 - now) * (1 - now / then)) ** 0.5  # DDIM, eq. 16, with η = 0.7
        direction = (before[row] - now.sqrt() * 0.3) / (1 - now).sqrt()
        mean = then.sqrt() * 0.3 + (1 - then - std**2).sqrt() * direction
        torch.testing.assert_close(logp[row], Normal(mean, std).log_prob(after[row]), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(trace_log_prob(sampler, None, trace, 0.7), logp)


def test_a_clipped_prediction_is_clipped_before_the_step():
    sampler = diffusion(prediction="sample", clip=True)
    chunk, _, _ = draw_chunk(sampler, None, noise(2, 3, 2), noise(2, 3, 2), torch.tensor([0, 1]), 0.0)
    torch.testing.assert_close(chunk, torch.full_like(chunk, 0.2), rtol=1e-4, atol=1e-4)


def test_ddim_with_eta_one_keeps_ddpms_posterior_deviation():
    alpha, after = torch.tensor(0.5), torch.tensor(0.8)
    beta = 1 - alpha / after
    torch.testing.assert_close(ddim_std(alpha, after, torch.tensor(1.0)) ** 2, beta * (1 - after) / (1 - alpha))


def flow_policy(velocity, **config):
    model = SimpleNamespace(denoise_step=velocity)
    return SimpleNamespace(model=model, config=SimpleNamespace(chunk_size=3, max_action_dim=2, **config))


def test_a_flow_to_a_known_chunk_lands_there_whatever_step_was_noisy():
    def velocity(x_t, timestep, told):
        return (x_t - told) / timestep[:, None, None]  # of a rectified flow whose every end is ``told``

    sampler = FlowSampler(flow_policy(velocity), 4, lambda policy, batch: {"told": batch})
    told = noise(3, 3, 2, seed=5)
    chunk, trace, logp = draw_chunk(
        sampler, sampler.encode(told), noise(3, 3, 2), noise(3, 3, 2, seed=1), torch.arange(3), 1.0
    )
    torch.testing.assert_close(chunk, told, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trace_log_prob(sampler, {"told": told}, trace, 1.0), logp)
    _, before, after = unpack_trace(trace, (3, 2))
    sigma, later = 0.75, 0.5  # row 1's step, from its second level
    scale = 0.5 * (sigma / (1 - sigma)) ** 0.5
    v = (before[1] - told[1]) / sigma
    mean = before[1] + (v + 0.5 * scale**2 * (before[1] + (1 - sigma) * v) / sigma) * (later - sigma)
    torch.testing.assert_close(logp[1], Normal(mean, scale * 0.5).log_prob(after[1]), rtol=1e-4, atol=1e-4)
    with pytest.raises(SettingError, match="needs 2"):
        FlowSampler(flow_policy(velocity), 1, lambda policy, batch: {})


def test_a_regressed_chunk_is_a_gaussian_of_the_learned_width():
    mean = noise(2, 3, 2)
    config = SimpleNamespace(chunk_size=3, action_feature=SimpleNamespace(shape=(2,)), image_features={})
    policy = SimpleNamespace(model=lambda batch: (mean, None), config=config)
    sampler = RegressionSampler(policy, torch.tensor([-1.0, 0.5]))
    start, fresh, own = torch.zeros(2, 3, 2), noise(2, 3, 2, seed=1), torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        chunk, trace, logp = draw_chunk(sampler, sampler.encode({}), start, fresh, own, 2.0)
    std = 2 * torch.tensor([-1.0, 0.5]).exp()
    torch.testing.assert_close(chunk, mean + std * fresh)
    torch.testing.assert_close(logp, Normal(mean, std).log_prob(chunk))
    again = trace_log_prob(sampler, sampler.encode({}), trace, 2.0)
    torch.testing.assert_close(again, logp)
    (gradient,) = torch.autograd.grad(again.sum(), sampler.log_std)
    torch.testing.assert_close(
        gradient, (fresh**2 - 1).sum(dim=(0, 1)), rtol=1e-4, atol=1e-4
    )  # d log N / d log s = z² - 1
    greedy, _, none = draw_chunk(sampler, mean, start, fresh, own, 0.0)
    assert torch.equal(greedy, mean)
    assert none.abs().max() == 0


def test_attention_blocks():
    pad = torch.tensor([[True, True, True, False]])
    causal = torch.tensor([[False, False, True, False]])
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert attention_2d(pad, causal)[0].int().tolist() == expected


def test_pi0s_prefix_is_filled_by_the_calls_of_its_own_sampler():
    """A double with the methods of lerobot 0.4.4's ``PI0Policy``; the real one needs a patched transformers, 0.6.1's does not."""
    calls = {}
    pad, causal = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.bool)

    class Expert:
        paligemma = SimpleNamespace(language_model=SimpleNamespace(config=SimpleNamespace()))

        def forward(self, **given):
            calls.update(given)
            return None, "cache"

    model = SimpleNamespace(
        embed_prefix=lambda *given: ("embedded", pad, causal),
        paligemma_with_expert=Expert(),
        _prepare_attention_masks_4d=lambda mask: mask[:, None],
    )
    policy = SimpleNamespace(
        model=model, _preprocess_images=lambda batch: (["image"], ["mask"]), prepare_state=lambda batch: "state"
    )
    language = {"observation.language.tokens": 1, "observation.language.attention_mask": 1}
    seen = encode_pi0(policy, language, served_release("0.4.4"))
    assert set(seen) == {
        "state",
        "prefix_pad_masks",
        "past_key_values",
    }  # with x_t and timestep: denoise_step's arguments
    assert calls["inputs_embeds"] == ["embedded", None]
    assert calls["attention_mask"].shape == (1, 1, 2, 2)
    assert calls["position_ids"].tolist() == [[0, 1]]


@pytest.mark.parametrize(("release", "told"), [("0.4.4", {"fill_kv_cache": True}), ("0.6.1", {})])
def test_smolvlas_prefix_is_filled_by_the_way_of_each_release(release, told):
    calls = {}
    pad, causal = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.bool)

    def forward(**given):
        calls.update(given)
        return None, "cache"

    model = SimpleNamespace(
        embed_prefix=lambda *given, state: ("embedded", pad, causal), vlm_with_expert=SimpleNamespace(forward=forward)
    )
    policy = SimpleNamespace(
        model=model,
        config=SimpleNamespace(use_cache=True),
        prepare_images=lambda batch: (["image"], ["mask"]),
        prepare_state=lambda batch: "state",
    )
    language = {"observation.language.tokens": 1, "observation.language.attention_mask": 1}
    seen = encode_smolvla(policy, language, served_release(release))
    assert (set(seen), seen["past_key_values"]) == ({"prefix_pad_masks", "past_key_values"}, "cache")
    shared = {"attention_mask", "position_ids", "past_key_values", "inputs_embeds", "use_cache"}
    assert {name: value for name, value in calls.items() if name not in shared} == told
