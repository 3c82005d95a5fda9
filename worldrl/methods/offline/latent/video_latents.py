"""What lets agents learn in the latents of a video world model, as data; ``worldrl reproduce offline-video`` measured it.

A step is a chunk, an episode some ten of them, and success pays 1 and ends it. So returns lie in [0, 1], the entropy of a
chunk must weigh little beside them, and actors begin as clones: a random one never succeeds, not even in imagination. What
each of these is worth is in ``docs/log/offline-reproductions-3.md``.
"""

from __future__ import annotations

from typing import Any

from worldrl.methods.offline.bc import BcConfig
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.neubay import NeubayConfig
from worldrl.methods.offline.ravl import RavlConfig
from worldrl.methods.offline.td3_bc import Td3BcConfig
from worldrl.methods.offline.training import OfflineTraining

NAME = "video-latents"
"""Of these settings, as datasets of papers have theirs."""
KEYPOINTS, COMPONENTS, STRIDE = 32, 8, 1
"""Of what agents see and choose, and control steps between trajectories of an episode."""
TRAINING = OfflineTraining(steps=8000, batch_size=256, evaluate_every=2000, checkpoint_every=1000)
IMAGINING = Imagining(horizon=4, real_ratio=0.5, rollouts=128, refresh_every=250, generations=20)
_SIZES: dict[str, Any] = {"hidden": (128, 128), "discount": 0.95, "polyak": 0.01}
_BEGINNING: dict[str, Any] = {
    "floor": 0.0,
    "ceiling": 1.0,
    "temperature": 0.001,
    "clone_steps": 2000,
    "clone_rate": 1e-3,
    "actor_rate": 3e-5,
}
AGENTS: dict[str, Any] = {
    "bc": BcConfig(hidden=(128, 128), learning_rate=1e-3),
    # Its cloning term is a mean over an action's numbers: the published 2.5 holds each of many too loosely.
    "td3_bc": Td3BcConfig(alpha=0.05, learning_rate=1e-3, **_SIZES),
    "ravl": RavlConfig(
        critics=5, diversity=0.0, critic_rate=1e-3, temperature_rate=0.0, entropy_backup=False, **_SIZES, **_BEGINNING
    ),
    "neubay": NeubayConfig(MemoryConfig(64, 32), encoder_rate=1e-4, head_rate=1e-3, **_SIZES, **_BEGINNING),
}
"""Settings by algorithm."""
