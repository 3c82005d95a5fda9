"""A tiny flow policy behind the real service, wire and worker: everything of a lerobot policy but lerobot's own network.

Its folder is written in lerobot's published layout (``publish``), its velocity is linear, v = (x - target) / σ-free::

    v_θ(x, σ, obs) = W x + b + c · command

so every step of its sampler has a closed form.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from worldrl.diffusion.flow import sigma_grid
from worldrl.diffusion.sde import flow_grpo_scale, sde_mean, sde_std
from worldrl.policies.lerobot.folder import read_lerobot_folder
from worldrl.policies.lerobot.one_step import trace_log_prob  # noqa: F401  (tests take it from here)
from worldrl.policies.lerobot.service import Service

HORIZON, PADDED, EXECUTED, ACTION, STEPS, ETA = 6, 8, 4, 7, 4, 0.5
STATISTICS = {"action.mean": torch.full((ACTION,), 0.05), "action.std": torch.full((ACTION,), 0.2)}
OBSERVED = {"observation.state.mean": torch.zeros(7), "observation.state.std": torch.ones(7)}


def publish(folder, *, size=16, seed=0, statistics=None, action=ACTION, **changes):
    """Write a complete policy folder of ``action`` numbers; ``changes`` replace entries of its config.json."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    config = {
        "type": "smolvla",
        "n_obs_steps": 1,
        "chunk_size": HORIZON,
        "horizon": HORIZON,  # what a diffusion policy calls its chunk
        "n_action_steps": EXECUTED,
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
        "input_features": {
            "observation.images.scene": {"type": "VISUAL", "shape": [3, size, size]},
            "observation.state": {"type": "STATE", "shape": [action]},
        },
        "output_features": {"action": {"type": "ACTION", "shape": [action]}},
    }
    scales = {"action.mean": torch.full((action,), 0.05), "action.std": torch.full((action,), 0.2)}
    observed = {"observation.state.mean": torch.zeros(action), "observation.state.std": torch.ones(action)}
    (folder / "config.json").write_text(json.dumps(config | changes))
    for name, step, held in (
        ("policy_preprocessor", "normalizer_processor", {**observed, **scales}),
        ("policy_postprocessor", "unnormalizer_processor", statistics or scales),
    ):
        state = f"{name}_step_0_{step}.safetensors"
        save_file(held, folder / state)
        steps = [{"registry_name": step, "config": {}, "state_file": state}]
        (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": steps}))
    draw = torch.Generator().manual_seed(seed)
    padded = max(PADDED, action)
    shapes = {"weight": (padded, padded), "bias": (padded,), "command": (padded, action)}
    save_file(
        {key: 0.3 * torch.randn(shape, generator=draw) for key, shape in shapes.items()}, folder / "model.safetensors"
    )
    (folder / "worldrl.json").write_text(json.dumps({"inputs": {"observation.state": "command"}}))
    return folder


class Linear(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        for name, value in weights.items():
            setattr(self, name, torch.nn.Parameter(value))

    def forward(self, x, command):
        return x @ self.weight.T + self.bias + (command @ self.command.T)[:, None]


def told(state):
    """What the network is given of states ``[B, 7]``, or of several ones ``[B, n_obs_steps, 7]``, whose order matters."""
    return state if state.ndim == 2 else state[:, -1] + 0.5 * state[:, 0]


class FakeSampler:
    steps, noisy = STEPS, range(STEPS - 1)

    def __init__(self, network):
        self.shape = (HORIZON, len(network.bias))
        self.network, self.sigma = network, sigma_grid(STEPS)
        self.scale = flow_grpo_scale(self.sigma[:-1], ETA, self.sigma[1])

    def encode(self, batch):
        return told(batch["observation.state"])

    def transition(self, seen, x, step, temperature):
        sigma, after = self.sigma[step], self.sigma[step + 1]
        scale = self.scale[step] * temperature
        return sde_mean(x, self.network(x, seen), sigma, after, scale), sde_std(sigma, after, scale)[:, None, None]


class FakeNetwork:
    device = torch.device("cpu")

    def __init__(self, folder):
        self.folder = read_lerobot_folder(Path(folder))
        self.policy = Linear(load_file(self.folder.path / "model.safetensors"))
        self.sampler = FakeSampler(self.policy)
        self.statistics = load_file(self.folder.path / "policy_postprocessor_step_0_unnormalizer_processor.safetensors")

    @property
    def modules(self):
        return {"policy": self.policy}

    def batch(self, features, sentences, action=None):
        assert {value.shape[-3] for name, value in features.items() if "images" in name} == {3}
        assert len(sentences) == len(features["observation.state"])
        return {**features, **({} if action is None else {"action": action})}

    def actions(self, chunk):
        return chunk * self.statistics["action.std"] + self.statistics["action.mean"]

    def loss(self, batch):
        action = torch.nn.functional.pad(batch["action"], (0, PADDED - ACTION))
        noise = torch.randn(action.shape)  # the stream that the service lends
        seen = told(batch["observation.state"])
        return (self.policy(0.5 * action + 0.5 * noise, seen) - (noise - action)).square().mean()

    def save(self, folder):
        for path in self.folder.path.iterdir():
            (Path(folder) / path.name).write_bytes(path.read_bytes())
        save_file(
            {name: value.detach() for name, value in self.policy.named_parameters()}, Path(folder) / "model.safetensors"
        )


class Fake:
    def __init__(self, *, folder, device="cpu", threads=1, boom=""):
        if boom:
            raise RuntimeError(boom)
        torch.set_num_threads(1)
        self.network = FakeNetwork(folder)

    def describe(self):
        sampler = self.network.sampler
        return {"suite": "fake", "shape": list(sampler.shape), "noisy": list(sampler.noisy), "packages": {}}

    def serve(self, pulse):
        return Service(self.network, pulse)


def observations(rows, seed=0, size=16):
    draw = np.random.default_rng(seed)
    image = torch.from_numpy(draw.integers(0, 256, (rows, size, size, 3), dtype=np.uint8))
    return image, torch.from_numpy(draw.normal(size=(rows, 7)).astype(np.float32)), ["pick up the red cube"] * rows
