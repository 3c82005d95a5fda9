"""A saved world model is sampled in other steps than it was saved with, and its result says so."""

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.recipes.sampler import Sampler, sampled
from worldrl.world_models.video.config import DynamicsConfig


@pytest.mark.parametrize("kind", ["flow_transformer", "edm_unet"])
def test_steps_reach_the_backend_that_takes_them(kind):
    config = DynamicsConfig(kind=kind)
    before = sampled(config)
    Sampler().apply(config)
    assert sampled(config) == before
    Sampler(steps=7).apply(config)
    assert sampled(config) == {"steps": 7, "refinement_steps": 0}
    assert (config.unet if kind == "edm_unet" else config).sampling_steps == 7


def test_refinement_is_the_flow_transformers():
    config = DynamicsConfig()
    Sampler(refinement_steps=2).apply(config)
    assert sampled(config)["refinement_steps"] == 2
    with pytest.raises(SettingError, match="refinement_steps is the flow transformer's"):
        Sampler(refinement_steps=2).apply(DynamicsConfig(kind="edm_unet"))


@pytest.mark.parametrize("over", [{"steps": 0}, {"refinement_steps": -1}])
def test_impossible_samplers_are_refused(over):
    with pytest.raises(SettingError, match=rf"sampler\.{next(iter(over))}"):
        Sampler(**over)


def test_each_asked_step_is_one_evaluation_of_the_network(make_world_model):
    model = make_world_model(sampling_steps=2)
    Sampler(steps=5, refinement_steps=1).apply(model.config.dynamics)
    calls = []
    model.dynamics.register_forward_hook(lambda *_: calls.append(1))
    noise = torch.zeros(1, *model.noise_shape)
    memory = torch.zeros(1, model.memory_frames, *model.codec.latent_shape)
    with torch.no_grad():
        model.dynamics.sample(noise, memory[:, 0], memory, torch.zeros(1, model.chunk_length, 14))
    assert len(calls) == 6
