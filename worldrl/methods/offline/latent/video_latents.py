"""Settings of agents in the latents of a video world model, measured in ``docs/log/offline-reproductions-3.md``.

A step is a chunk and an episode some ten of them; a success pays 1 and ends it. So returns are in [0, 1] and the
entropy of a chunk must weigh little. Actors begin as clones: a random one never succeeds, not even in imagination.
"""

from typing import Any

from worldrl.methods.offline.bc import BcConfig
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.neubay import NeubayConfig
from worldrl.methods.offline.ravl import RavlConfig
from worldrl.methods.offline.td3_bc import Td3BcConfig
from worldrl.methods.offline.training import OfflineTraining

NAME = "video-latents"  # name of these settings, in the place of a dataset's
KEYPOINTS, COMPONENTS, STRIDE = 32, 8, 1
"""Sizes of observations and actions, and control steps between trajectories of an episode."""
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
    # The cloning term is a mean over an action's numbers: the published 2.5 constrains each of many too weakly.
    "td3_bc": Td3BcConfig(alpha=0.05, learning_rate=1e-3, **_SIZES),
    "ravl": RavlConfig(
        critics=5, diversity=0.0, critic_rate=1e-3, temperature_rate=0.0, entropy_backup=False, **_SIZES, **_BEGINNING
    ),
    "neubay": NeubayConfig(MemoryConfig(64, 32), encoder_rate=1e-4, head_rate=1e-3, **_SIZES, **_BEGINNING),
}
"""Settings by algorithm."""
