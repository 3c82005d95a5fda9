"""The actor of a self-made dataset: trained by ``behaviour_sac``, loaded without Stable-Baselines3."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from worldrl.core.storage.artefact import read_artefact

ACTOR = "sac-actor"
LOG_STD = (-20.0, 2.0)  # bounds of Stable-Baselines3 for the log standard deviation


def squashed_gaussian(weights: Mapping[str, Tensor], obs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log standard deviation ``[B, A]`` before tanh, of Stable-Baselines3's SAC actor at ``obs [B, S]``."""
    hidden = obs
    layers = sorted(int(name.split(".")[1]) for name in weights if name.startswith("latent_pi") and "weight" in name)
    for layer in layers:
        hidden = F.relu(F.linear(hidden, weights[f"latent_pi.{layer}.weight"], weights[f"latent_pi.{layer}.bias"]))
    mean = F.linear(hidden, weights["mu.weight"], weights["mu.bias"])
    return mean, F.linear(hidden, weights["log_std.weight"], weights["log_std.bias"]).clamp(*LOG_STD)


@dataclass(frozen=True)
class BehaviourActor:
    """A trained actor: its weights, and the artefact's config with environment, steps, return and settings."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> "BehaviourActor":
        """Load one of ``actors/step-...``; ArtefactError as :func:`~worldrl.core.storage.artefact.read_artefact`."""
        artefact = read_artefact(folder, kind=ACTOR)
        return cls(artefact.tensors, artefact.config)

    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Choose actions float32 ``[B, A]`` in [-1, 1]; ``generator=None`` takes the tanh of the mean."""
        with torch.no_grad():
            mean, log_std = squashed_gaussian(self.weights, obs)
            if generator is not None:
                mean = mean + log_std.exp() * torch.randn(mean.shape, generator=generator)
            return mean.tanh()
