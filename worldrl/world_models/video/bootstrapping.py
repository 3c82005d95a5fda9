"""Dynamic latent bootstrapping (Sword): training on contexts that the model imagined, as deep as episodes are long.

Each row of a bounded buffer follows a recorded episode and its true actions (or its instruction, where these are
hidden) on the model's own frames. At a bootstrapped step a batch of rows is the context and the recorded next chunk
the target; then the rows imagine that chunk and advance. A row whose episode has ended begins another. Sword caches
one prediction per position of a clip; rows that advance keep the errors of a whole rollout.

Shapes legend: ``N`` rows of the buffer, ``B`` rows of a batch, ``K`` memory frames.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError
from worldrl.data.windows.batch import WindowBatch, WindowLayout, gather_windows
from worldrl.data.windows.frame_store import FrameStore
from worldrl.world_models.video.following import Follower, imagine_chunk


@dataclass(frozen=True)
class Context:
    """Drawn ``rows`` ``[B]`` and their recorded windows of one chunk, with the model's memory where there is one."""

    rows: Tensor
    batch: WindowBatch


class LatentRollouts(nn.Module):
    """The buffer of ``N`` rows; a module so that checkpoints contain it. SettingError: no row."""

    episode: Tensor
    step: Tensor
    begun: Tensor
    memory: Tensor

    def __init__(self, store: FrameStore, layout: WindowLayout, rows: int):
        super().__init__()
        if rows < 1:
            raise SettingError(f"training.bootstrap_rows must be at least 1, got {rows}")
        self.store, self.layout = store, replace(layout, unroll=1)
        self.register_buffer("episode", torch.zeros(rows, dtype=torch.int64))
        self.register_buffer("step", torch.zeros(rows, dtype=torch.int64))
        self.register_buffer("begun", torch.zeros(rows, dtype=torch.bool))  # false: the row needs an episode
        first = np.zeros(rows, np.int64)
        recorded = gather_windows(store, self.layout, first, first, np.zeros(rows, np.bool_)).memory
        self.register_buffer("memory", torch.zeros_like(recorded))

    def __len__(self) -> int:
        return len(self.begun)

    @torch.no_grad()
    def draw(self, batch: int, generator: torch.Generator) -> Context:
        """Draw ``batch`` different rows, or all of fewer; rows without an episode begin one."""
        rows = torch.randperm(len(self), generator=generator)[:batch]
        self._begin(rows[~self.begun.cpu()[rows]], generator)
        episode, step = (value.cpu()[rows].numpy() for value in (self.episode, self.step))
        window = gather_windows(self.store, self.layout, episode, step, np.zeros(len(rows), np.bool_))
        return Context(rows, replace(window.to(self.memory.device), memory=self.memory[rows]))

    def _begin(self, rows: Tensor, generator: torch.Generator) -> None:
        """Give rows an episode, half of them from its beginning and half from anywhere, on recorded frames."""
        where, start = torch.rand(2, len(rows), generator=generator, dtype=torch.float64).numpy()
        eligible = np.flatnonzero(self.store.length >= self.layout.frame_stride)
        episode = eligible[(where * len(eligible)).astype(np.int64)]
        last = self.store.length[episode] - self.layout.frame_stride
        step = (np.maximum(2 * start - 1, 0) * (last + 1)).astype(np.int64)
        memory = gather_windows(self.store, self.layout, episode, step, np.zeros(len(rows), np.bool_)).memory
        for name, value in (("episode", torch.from_numpy(episode)), ("step", torch.from_numpy(step))):
            getattr(self, name)[rows] = value.to(self.memory.device)
        self.memory[rows] = memory.to(self.memory)
        self.begun[rows] = True

    @torch.no_grad()
    def advance(
        self,
        model: Follower[Any],
        context: Context,
        generator: torch.Generator,
        hidden: Tensor | None = None,
    ) -> None:
        """Imagine the drawn rows' chunk, from the instruction where ``hidden [B]``; ended rows become free."""
        state = model.window_start(context.batch)
        after, _ = imagine_chunk(model, state, context.batch, 0, generator, hidden)
        rows = context.rows.to(self.memory.device)
        self.memory[rows] = after.memory.to(self.memory)
        self.step[rows] += self.layout.chunk_length
        length = torch.from_numpy(self.store.length)[self.episode.cpu()[context.rows]].to(self.step.device)
        self.begun[rows] = self.step[rows] + self.layout.frame_stride <= length
