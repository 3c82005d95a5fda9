"""What the stages of ``worldrl train-vla`` take and return: objects that are read once, from the folder of their stage.

A finished stage gives its folder back, so a resumed run reads what an unbroken one has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from worldrl.core.interfaces import Policy, TrainablePolicy
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.policy_folder import load_policy
from worldrl.world_models.loading import AnyVideoModel, open_world_model


@dataclass(frozen=True)
class Recording:
    """Recorded episodes of a folder: all, or the ``part`` that is used."""

    folder: Path
    part: EpisodeDataset | None = None
    scratch: Path | None = None  # where many images are mapped; None takes the folder

    @cached_property
    def dataset(self) -> EpisodeDataset:
        """Without images."""
        return EpisodeDataset.open(self.folder) if self.part is None else self.part

    @cached_property
    def episodes(self) -> list[Episode]:
        """Decoded, in memory or mapped."""
        return list(self.dataset.load(scratch=self.scratch or self.folder))


def datasets_by_folder(recordings: Sequence[Recording]) -> dict[str, EpisodeDataset]:
    """Return datasets as a manifest names its parents."""
    return {str(recording.folder): recording.dataset for recording in recordings}


@dataclass(frozen=True)
class SavedPolicy:
    """A policy that a stage has learned or was given."""

    folder: Path
    device: torch.device

    @cached_property
    def network(self) -> Policy:
        """To act with; whoever trains it takes a :meth:`copy`."""
        return load_policy(self.folder, str(self.device))

    def copy(self) -> TrainablePolicy:
        """Read it once more, to be trained, and leave the memory of the first to the training."""
        self.__dict__.pop("network", None)
        return load_policy(self.folder, str(self.device))


@dataclass(frozen=True)
class SavedWorld:
    """A world model that imagines in ``dtype``."""

    folder: Path
    device: torch.device
    dtype: torch.dtype

    @cached_property
    def model(self) -> AnyVideoModel:
        """On its device."""
        model = open_world_model(self.folder, self.device)
        model.compute_dtype = self.dtype
        return model

    @property
    def rule(self) -> SuccessRule:
        """Of success, as calibrated."""
        return SuccessRule.of(self.model.config.outcome)

    def release(self) -> None:
        """Leave the device's memory to a training."""
        self.__dict__.pop("model", None)
