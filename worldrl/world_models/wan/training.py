"""Settings of the Wan world model's training.

A clip is encoded as a whole by the causal autoencoder, so latents cannot be made once and cut into windows, as those of
worldrl's own codec are: every step encodes its clips anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worldrl.core.errors import SettingError
from worldrl.core.types import Episode


@dataclass
class WanTraining:
    """Settings of :func:`worldrl.world_models.wan.fit.fit_wan`."""

    steps: int = 10_000  # optimiser steps; 0 leaves the model as it is.
    batch: int = 8  # clips per process and pass.
    accumulate: int = 1  # passes per optimiser step.
    learning_rate: float = 1e-5  # peak rate of published weights (``adapter=full``); warm-up cosine. WoVR's.
    new_learning_rate: float = 1e-4  # peak rate of what begins here: low-rank additions, action channels, success head.
    warmup: int = 200  # steps of warm-up.
    final_rate: float = 0.1  # share of the peak rate at the end.
    weight_decay: float = 0.01  # AdamW.
    clip_norm: float = 1.0  # largest gradient norm.
    bootstrap: float = 0.0  # probability that a pass continues rollouts on the model's own frames (``bootstrapping``).
    # how many such rollouts are kept, each as the newest images; both or neither of the two are 0.
    bootstrap_rows: int = 0
    first_chunk_share: float = 0.05  # share of clips that start an episode.
    static_share: float = 0.05  # share of static clips.
    event_share: float = 0.3  # share of clips around gripper changes and contacts.
    negative_share: float = 0.2  # share of clips whose instruction is replaced by one that they do not fulfil.
    # steps of the outcome ensemble, after the rest, where the model has one; 0 leaves it as it is.
    outcome_steps: int = 400
    # recorded episodes, drawn at random, that are imagined for it, twice each, ``batch`` at a time.
    outcome_episodes: int = 256
    outcome_batch: int = 64  # imagined episodes per step of those.
    outcome_learning_rate: float = 2e-3  # peak, warm-up cosine.
    outcome_weight_decay: float = 0.05  # AdamW.
    outcome_dropout: float = 0.1  # share of the findings hidden in each episode.
    # ``float32``, ``bfloat16`` for autocast, or ``auto``: bfloat16 where the device has units for it.
    dtype: str = "auto"
    gradient_checkpointing: bool = True  # recompute each block in the backward pass: less memory, a third more time.
    compile: bool = False  # compile the transformer's blocks.
    checkpoint_every: int = 500  # steps between checkpoints.

    def __post_init__(self) -> None:
        for name in ("batch", "accumulate", "checkpoint_every", "outcome_episodes", "outcome_batch"):
            if getattr(self, name) < 1:
                raise SettingError(f"wan.training.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("bootstrap", "negative_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"wan.training.{name} must be in [0, 1], got {getattr(self, name)}")
        if self.bootstrap_rows < 0:
            raise SettingError(f"wan.training.bootstrap_rows must not be negative, got {self.bootstrap_rows}")
        if bool(self.bootstrap) != bool(self.bootstrap_rows):
            raise SettingError(
                f"wan.training.bootstrap={self.bootstrap} and bootstrap_rows={self.bootstrap_rows}: passes continue rollouts that "
                "are kept, and rollouts are kept for passes; give both, such as 0.5 and 64, or neither"
            )
        if not 0 <= self.outcome_dropout < 1:
            raise SettingError(f"wan.training.outcome_dropout must be in [0, 1), got {self.outcome_dropout}")

    @property
    def backbone(self) -> str:
        """Of which world models these are settings."""
        return "wan"

    @property
    def unroll(self) -> int:
        """Chunks of a clip."""
        return 1

    @property
    def action_dropout(self) -> float:
        """Share of clips without actions: a Wan world model does not plan."""
        return 0.0


def take(episodes: Sequence[Episode], positions: Sequence[int]) -> Sequence[Episode]:
    """Take some episodes; those of a dataset that is not loaded are decoded later, straight into the sampler's store."""
    from worldrl.data.lerobot.dataset import EpisodeDataset

    return episodes.subset(positions) if isinstance(episodes, EpisodeDataset) else [episodes[i] for i in positions]
