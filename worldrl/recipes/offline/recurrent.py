"""NEUBAY in ``worldrl train-offline``: an agent with a recurrent state, trained on packed sequences of long rollouts.

The world is an ensemble of the layer-norm kind, one member per rollout; rollouts end where its uncertainty exceeds a
quantile of that on the data, in video latents by time alone. Defaults are for a laptop, measured on own Hopper and
HalfCheetah sets (``docs/log/offline-grids.md``); ``preset=gpu`` takes the published ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from worldrl.core.errors import SettingError, require_value
from worldrl.core.storage.jsonfile import read_json, write_json
from worldrl.core.storage.log import MetricLog
from worldrl.core.transitions import Transitions
from worldrl.data.offline.trajectories import Trajectories
from worldrl.methods.offline.latent import video_latents
from worldrl.methods.offline.neubay.long_rollouts import Episodes, LongRolloutConfig
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.neubay import Neubay, NeubayConfig
from worldrl.methods.offline.neubay.settings_by_dataset import tuned_for
from worldrl.methods.offline.neubay.training import NeubayTraining, train_neubay
from worldrl.methods.offline.training import Evaluate, OfflineReport, OfflineTraining
from worldrl.rollout.imagined.latent_world import LatentWorld
from worldrl.rollout.vector.episodes import time_limit
from worldrl.settings import PUBLISHED
from worldrl.world_models.state.config import neubay_ensemble
from worldrl.world_models.state.ensemble_world import EnsembleWorld, dataset_uncertainty, uncertainty_threshold

LONGEST = 1000  # Time limit of a rollout where neither data nor environment name one


@dataclass(frozen=True)
class RecurrentConfig:
    """Settings of tapes and rollouts; defaults are the paper's for locomotion, but for the tape that is kept (40 million)."""

    rows: int = 2048  # of tape per update
    kept: int = 2_000_000  # rows of tape kept; the oldest segments go first
    rollouts: int = 100  # per generation
    updates_per_step: float = 0.05  # gradient steps per step that a generation brings, its real history counted
    quantile: float = 1.0  # ζ, quantile of the data's uncertainty at which rollouts are cut
    horizon: int | None = None  # imagined steps at most; null up to the time limit
    # Recorded steps at most that a rollout reads before it imagines; null from the episode's first (the paper's).
    history: int | None = None

    def __post_init__(self) -> None:
        require_value(self.rows >= 2, "recurrent.rows", "at least 2", self.rows)
        require_value(self.kept >= 2, "recurrent.kept", "at least 2", self.kept)
        require_value(self.rollouts >= 1, "recurrent.rollouts", "at least 1", self.rollouts)
        require_value(self.updates_per_step > 0, "recurrent.updates_per_step", "positive", self.updates_per_step)
        require_value(0 <= self.quantile <= 1, "recurrent.quantile", "in [0, 1]", self.quantile)
        require_value(
            self.horizon is None or self.horizon >= 1, "recurrent.horizon", "null or at least 1", self.horizon
        )
        require_value(
            self.history is None or self.history >= 0, "recurrent.history", "null or at least 0", self.history
        )


LAPTOP_AGENT = NeubayConfig(
    MemoryConfig(width=128, states=64, layers=1),
    hidden=(128, 128),
    critics=4,
    polyak=0.03,
    encoder_rate=1e-4,
    head_rate=5e-4,
)
"""NEUBAY for a core and 25 minutes: faster rates and targets, since it takes 15,000 updates and not two million."""
LAPTOP_SEQUENCES = RecurrentConfig(
    rows=1024, kept=400_000, rollouts=200, updates_per_step=0.01, horizon=150, history=50
)
"""Short rollouts, so that an update sees several: of whole episodes 1,024 rows hold one or two (docs/reference/neubay.md)."""
LATENT_SEQUENCES = RecurrentConfig(rows=256, kept=11_520, rollouts=64, updates_per_step=250 / 512)
"""In video latents, where an episode is eight chunks: twenty generations are kept, one is made every 250 updates."""
LAPTOP_ENSEMBLE = (6, 5, 60)  # Members, elites and epochs
LAPTOP_UPDATES = OfflineTraining(steps=15_000, evaluate_every=3000, checkpoint_every=3000)


def neubay_defaults(given: Mapping[str, str]) -> dict[str, Any]:
    """Default groups for the given settings (text by dotted key): laptop sizes, or a published preset's.

    ``tuned=`` sets the paper's κ and α of a dataset, and with the published sizes its encoder rate. SettingError for
    settings without effect, or an unknown dataset.
    """
    useless = [key for key in given if unread_by_neubay(key)]
    if useless:
        raise SettingError(f"{useless[0]}: recurrent.* are settings of neubay, which learns from packed sequences")
    published, (ensemble, learning) = given.get("preset") in PUBLISHED, neubay_ensemble()
    agent, latents = NeubayConfig() if published else LAPTOP_AGENT, given.get("tuned") == video_latents.NAME
    if given.get("tuned") and not latents:
        tuned = tuned_for(given["tuned"], agent)
        agent = tuned if published else replace(tuned, encoder_rate=agent.encoder_rate)
    if published:
        parts = (RecurrentConfig(), ensemble, learning, OfflineTraining())
    else:
        members, elites, epochs = LAPTOP_ENSEMBLE
        small = replace(ensemble, members=members, elites=elites)
        parts = (LAPTOP_SEQUENCES, small, replace(learning, max_epochs=epochs), LAPTOP_UPDATES)
    if latents:
        agent, parts = video_latents.AGENTS["neubay"], (LATENT_SEQUENCES, *parts[1:3], video_latents.TRAINING)
    return dict(zip(("agent", "recurrent", "ensemble", "ensemble_training", "training"), (agent, *parts), strict=True))


def unread_by_neubay(key: str) -> bool:
    """Whether a setting of other algorithms has no effect: NEUBAY imagines whole episodes and learns from packed sequences."""
    return key.startswith("imagining.") or key == "training.batch_size"


def train_recurrent(
    settings: Any,
    agent: Neubay,
    world: EnsembleWorld | LatentWorld,
    data: Trajectories,
    rows: Transitions,
    *,
    evaluate: Evaluate | None,
    folder: Path,
    log: MetricLog,
) -> OfflineReport:
    """Train NEUBAY in ``world``, made with ``rows`` or of latents, resuming from ``folder``.

    ``evaluate`` runs about every ``training.evaluate_every`` updates, at the end of a generation. SettingError where no
    uncertainty is measured, or a quantile of it is requested in latents.
    """
    config: RecurrentConfig = settings.recurrent
    threshold = threshold_in(world, rows, config.quantile)
    limit = time_limit(data.info) or LONGEST
    steps = limit if config.horizon is None or config.history is None else min(limit, config.history + config.horizon)
    longest = config.rollouts * steps * config.updates_per_step  # updates of a generation whose rollouts are all whole
    training = NeubayTraining(
        updates=settings.training.steps,
        rows=config.rows,
        buffer=max(config.kept, limit + 1),
        updates_per_step=config.updates_per_step,
        rollouts=LongRolloutConfig(config.rollouts, limit, config.horizon, threshold, config.history),
        checkpoint_generations=max(1, round(settings.training.checkpoint_every / longest)),
    )
    episodes = Episodes.of(rows, torch.from_numpy(data.episode))
    intermediate = IntermediateEvaluations(
        folder / "evaluations.json", settings.training.evaluate_every, training.updates
    )

    def evaluate_if_due(updates: int) -> None:
        if evaluate is not None and intermediate.due(updates):
            intermediate.note(updates, evaluate(agent, updates))

    train_neubay(
        agent, world, episodes, training, seed=settings.seed, folder=folder, log=log, on_generation=evaluate_if_due
    )
    numbers = {"threshold": threshold} if math.isfinite(threshold) else {}
    return OfflineReport(training.updates, 0, 0.0, intermediate.found, numbers)


def threshold_in(world: EnsembleWorld | LatentWorld, rows: Transitions, quantile: float) -> float:
    """Uncertainty after which rollouts are cut; infinity in latents, where SettingError refuses a quantile but 1."""
    if isinstance(world, EnsembleWorld):
        return uncertainty_threshold(dataset_uncertainty(world, rows), quantile)
    require_value(quantile == 1.0, "recurrent.quantile", "1 with world=latent, which measures no uncertainty", quantile)
    return math.inf


class IntermediateEvaluations:
    """Evaluations every ``every`` updates or so and after the ``last``, in JSON; late ones are made again."""

    def __init__(self, path: Path, every: int, last: int) -> None:
        self.path, self.every, self.last = path, every, last
        self.found: list[dict[str, Any]] = read_json(path)["evaluations"] if path.exists() else []

    def due(self, updates: int) -> bool:
        """Whether to evaluate after so many updates; removes later entries of a killed session."""
        self.found = [entry for entry in self.found if entry["step"] < updates]
        before = self.found[-1]["step"] if self.found else 0
        return updates >= self.last or updates // self.every > before // self.every

    def note(self, updates: int, numbers: Mapping[str, float]) -> None:
        """Store an evaluation."""
        self.found.append({"step": updates, **numbers})
        write_json(self.path, {"evaluations": self.found})
