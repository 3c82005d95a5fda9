"""Imagined groups that are recorded once, in small batches, and shown to every method again.

Shapes legend: ``B`` rollouts of a batch, ``N`` groups of it, ``T`` chunks.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from worldrl.core.device import resolve_dtype
from worldrl.core.errors import ArtefactError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import stream, stream_seed
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.log import Progress
from worldrl.core.types import PolicyObs
from worldrl.methods.rl.groups import group_sum
from worldrl.methods.rl.imagination import PolicyChunks, PolicyImagination, imagined_env
from worldrl.methods.rl.interfaces import Collected, Request
from worldrl.methods.rl.records import StartRecords
from worldrl.methods.rl.selection import LEAST
from worldrl.methods.rl.starts import permuted
from worldrl.methods.rl.trust import FilterResult
from worldrl.policies.exploration import Exploration
from worldrl.policies.token.policy import TokenPolicy
from worldrl.recipes.world_model.start import weights_folder
from worldrl.reproductions.yardstick.settings import YardstickSettings
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.imagined.rollouts import ImaginedRollouts
from worldrl.rollout.imagined.starts import EMBEDDED_BACKEND
from worldrl.world_models.loading import open_world_model

TENSORS = ("image", "command", "token", "logp", "valid", "probability")
"""What is kept of rollouts by chunk, ``[T, B, ...]``."""
PLACE = "place"
"""Name among a policy's further observations: the number of each recorded chunk, int64 ``[T, B]``."""
INFORMATIVE, FRAMES = "yardstick/informative", "yardstick/frames"


@dataclass(frozen=True)
class Batch:
    """A small batch of groups of equal size, and the ids of their starts, int64 ``[N]``."""

    rollouts: ImaginedRollouts
    starts: Tensor

    def save(self, file: Path) -> None:
        """Write one ``.npz`` file, whole or not at all."""
        seen, data = self.rollouts, io.BytesIO()
        assert seen.end is not None
        arrays = {name: getattr(seen, name).numpy() for name in (*TENSORS, "success", "group")}
        more = {f"more.{name}": value.numpy() for name, value in seen.more.items()}
        texts = {name: np.array(getattr(seen, name)) for name in ("instruction", "task")}
        ends = {"end": seen.end.image.numpy(), "end_command": seen.end.command.numpy(), "starts": self.starts.numpy()}
        np.savez_compressed(data, allow_pickle=False, **arrays, **more, **texts, **ends)
        write_file(file, data.getvalue())

    @classmethod
    def load(cls, file: Path) -> "Batch":
        """Read :meth:`save`'s file; ArtefactError where it is damaged."""
        try:
            with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as data:
                return cls._of({name: data[name] for name in data.files})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ArtefactError(
                f"{file}: cannot be read as recorded groups: {error}; remove it and run again"
            ) from error

    @classmethod
    def _of(cls, arrays: Mapping[str, Any]) -> "Batch":
        texts: dict[str, Any] = {name: tuple(map(str, arrays[name])) for name in ("instruction", "task")}
        held = {name: torch.from_numpy(value) for name, value in arrays.items() if name not in texts}
        more = {name.removeprefix("more."): value for name, value in held.items() if name.startswith("more.")}
        end = PolicyObs(held["end"], held["end_command"], texts["instruction"])
        kept = {name: held[name] for name in (*TENSORS, "success", "group")}
        return cls(ImaginedRollouts(**kept, **texts, end=end, more=more), held["starts"])


def record(settings: YardstickSettings, policy: TokenPolicy, seed: int, folder: Path) -> None:
    """Imagine the batches that ``folder`` lacks; their noise is named by ``seed`` and their number."""
    model = open_world_model(weights_folder(settings.world_model), torch.device("cpu")).eval()
    model.compute_dtype = resolve_dtype("auto", torch.device("cpu"))
    layout = {"memory_frames": model.memory_frames, "image_size": policy.config.image_size, "more": model.more}
    first = stream_seed(seed, "yardstick", "starts") % 2**31
    store = ResetStore(EMBEDDED_BACKEND.starts([settings.task], settings.starts, seed=first, **layout))
    rows, horizon = settings.batch_groups * settings.group_size, EMBEDDED_BACKEND.horizons([settings.task])
    rule = SuccessRule.of(model.config.outcome)
    env = imagined_env(model, store, rule, rows=rows, horizon=horizon)
    source = PolicyImagination(env, policy, Exploration(), 0.0, seed)
    plan = permuted(source.records, settings.groups, stream(seed, "yardstick", "plan")).split(settings.batch_groups)
    with Progress("imagine groups", total=settings.batches, unit="batches") as progress:
        for number, starts in enumerate(plan):
            if not (file := batch_file(folder, number)).exists():
                request = Request.make(number, starts, torch.full_like(starts, settings.group_size))
                Batch(source.imagine(request).rollouts, starts).save(file)
            progress.advance()


def batch_file(folder: Path, number: int) -> Path:
    """File of one batch."""
    return folder / f"batch-{number}.npz"


@dataclass(frozen=True, kw_only=True)
class RecordedImagination(PolicyImagination):
    """A policy's imagination that plays a recorded batch in place of imagining one."""

    batch: ImaginedRollouts
    starts: Tensor
    known: StartRecords  # what the other batches tell of the starts
    group_size: int

    @property
    def records(self) -> StartRecords:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What is known of the starts."""
        return self.known

    def imagine(self, request: Request) -> FilterResult:
        """Return the asked rows of each group; a start has no more rows than were recorded."""
        held = request.mate < self.group_size
        rows = (request.group * self.group_size + request.mate)[held]
        return FilterResult(taken(self.batch, rows, request.group[held]))

    def learned(self, starts: Tensor, collected: Collected[FilterResult]) -> None:
        """Learn nothing, so that every method meets the same records."""

    def decisions(self, experience: FilterResult, advantage: Tensor, weight: Tensor, logs: Logs) -> PolicyChunks:
        """Collect the chunks that count, and note which groups teach anything and what the batch cost."""
        rollouts = experience.rollouts
        assert rollouts.probability is not None
        taught = group_sum((advantage * weight).abs().sum(dim=0), rollouts.group)
        logs[INFORMATIVE] = (taught > LEAST).float().mean()
        logs[FRAMES] = rollouts.valid.sum() * rollouts.probability.shape[2] / len(self.starts)
        return super().decisions(experience, advantage, weight, logs)


def taken(rollouts: ImaginedRollouts, rows: Tensor, group: Tensor) -> ImaginedRollouts:
    """Keep some rollouts, in new groups."""
    assert rollouts.end is not None
    texts = {name: tuple(getattr(rollouts, name)[row] for row in rows.tolist()) for name in ("instruction", "task")}
    kept = {name: getattr(rollouts, name)[:, rows] for name in TENSORS}
    more = {name: value[:, rows] for name, value in rollouts.more.items()}
    end = rollouts.end.take(lambda value: value[rows], texts["instruction"])
    return replace(rollouts, **kept, **texts, success=rollouts.success[rows], group=group, more=more, end=end)


def sources(
    batches: Sequence[Batch], policy: TokenPolicy, settings: YardstickSettings, seed: int
) -> list[RecordedImagination]:
    """One imagination for each batch; the start records of each hold the outcomes of all others."""
    no_env = cast("WorldModelVecEnv", None)  # nothing is imagined

    def one(number: int, batch: Batch) -> RecordedImagination:
        places = torch.arange(batch.rollouts.valid.numel()).view(batch.rollouts.valid.shape)
        numbered = replace(batch.rollouts, more={**batch.rollouts.more, PLACE: places})
        others = [other for place, other in enumerate(batches) if place != number]
        return RecordedImagination(
            no_env, policy, Exploration(), 0.0, seed,
            batch=numbered, starts=batch.starts, known=outcomes(others, settings), group_size=settings.group_size,
        )  # fmt: skip

    return [one(number, batch) for number, batch in enumerate(batches)]


def outcomes(batches: Sequence[Batch], settings: YardstickSettings) -> StartRecords:
    """Count successes and failures of some batches by start."""
    known = StartRecords([settings.task] * settings.starts, [False] * settings.starts, counts=True)
    for batch in batches:
        wins = group_sum(batch.rollouts.success.double(), batch.rollouts.group)
        known.learn(batch.starts, wins, batch.rollouts.group.bincount().double())
    return known
