"""Videos as trees of denoising steps: rows share what they have in common, and branch where a step adds noise.

A video of ``U`` chunks takes ``U S`` steps. At some of them every row may split into several, which continue from one
network evaluation with noise of their own (BranchGRPO). Every row has a *key*, a path of names: its noise is a
function of seed, key and step alone, under any number of steps, in any precision (Sol-RL), and beside any rows.

Shapes legend: ``R`` rows of a layer, ``F`` frames per chunk, ``c h w`` latent, ``K`` memory frames, ``L`` control
steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch
from torch import Tensor

from worldrl.core.rng import Name, row_noise, stream
from worldrl.diffusion.flow import expand_sigma
from worldrl.diffusion.sde import Schedule, gaussian_log_prob
from worldrl.methods.alignment.task import AlignmentTask
from worldrl.world_models.video.flow_transformer import FlowTransformer
from worldrl.world_models.video.following import VideoState

Key = tuple[Name, ...]


@dataclass(frozen=True)
class Surroundings:
    """What the network sees of a chunk besides the chunk itself, in each row."""

    reference: Tensor  # ``[R, c, h, w]``.
    memory: Tensor  # ``[R, K, c, h, w]``.
    condition: Tensor  # ``[R, L, C]``.

    @classmethod
    def join(cls, parts: "Sequence[Surroundings]") -> "Surroundings":
        """Put rows one after the other."""
        return cls(*[torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)])

    def select(self, index: Tensor) -> "Surroundings":
        """Take the rows of ``index``."""
        return Surroundings(self.reference[index], self.memory[index], self.condition[index])

    def predict(self, dynamics: FlowTransformer, x: Tensor, sigma: Tensor) -> Tensor:
        """Let the network predict the clean chunk ``[R, F, c, h, w]`` from ``x`` at levels ``sigma`` ``[R]``."""
        return dynamics(x, sigma, self.reference, self.memory, self.condition)[0].float()


@dataclass(frozen=True)
class ChunkSteps:
    """Denoising steps of chunks, one a row; what is known of each beside this is in the fields of a subclass."""

    step: Tensor  # int64 ``[M]``.
    x: Tensor  # before ``[M, F, c, h, w]``.
    around: Surroundings  # what the network saw.

    def __len__(self) -> int:
        return len(self.step)

    def select(self, index: Tensor) -> Self:
        """Take the steps of ``index``."""
        index = index.to(self.x.device)
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return type(self)(**{k: v.select(index) if k == "around" else v[index] for k, v in values.items()})


@dataclass(frozen=True)
class Layer:
    """One denoising step of all rows."""

    step: int  # within its chunk.
    # int64 ``[R]``, the row of the layer before that each row continues from; of the first layer, the root.
    parent: Tensor
    group: Tensor  # int64 ``[R]``, the prompt of each row.
    x: Tensor  # before the step ``[R, F, c, h, w]``.
    x_next: Tensor  # after it.
    logp: Tensor  # ``[R]`` of the step's noise; 0 where the step is the ODE's.
    around: Surroundings  # what the network saw.
    last: bool  # this step finishes its chunk.


@dataclass(frozen=True)
class VideoTree:
    """Videos that share their beginnings."""

    layers: list[Layer] = field(repr=False)  # ``U S`` of them, in time.
    latent: Tensor  # the leaves' videos ``[B, U F, c, h, w]``.
    group: Tensor  # int64 ``[B]``, the prompt of each leaf, 0..N-1.
    start: Tensor  # int64 ``[B]``, the start of each leaf.
    keys: list[Key]  # of the leaves.
    evaluations: int  # rows that the network was asked about, in all.

    def select(self, index: Tensor) -> "VideoTree":
        """Take some leaves of a tree without splits."""
        rows = torch.arange(len(index))
        there = index.to(self.latent.device)
        layers = [
            replace(
                layer,
                parent=rows,
                group=layer.group[index],
                around=layer.around.select(there),
                **{name: getattr(layer, name)[there] for name in ("x", "x_next", "logp")},
            )
            for layer in self.layers
        ]
        keys = [self.keys[i] for i in index.tolist()]
        return VideoTree(layers, self.latent[there], self.group[index], self.start[index], keys, self.evaluations)


def key_noise(seed: int, keys: Sequence[Key], what: Key, shape: Sequence[int], device: torch.device) -> Tensor:
    """Draw standard normal noise ``[R, *shape]``, each row from the stream of its own key."""
    return row_noise([stream(seed, "videos", *key, *what) for key in keys], shape, device)


@torch.no_grad()
def grow(
    task: AlignmentTask,
    schedule: Schedule,
    start: Tensor,
    keys: Sequence[Key],
    group: Tensor,
    *,
    reduce: str = "mean",
    splits: Mapping[int, int] | None = None,
    shared_noise: bool = False,
    dynamics: FlowTransformer | None = None,
) -> VideoTree:
    """Imagine a tree of videos; log-probabilities, reduced by ``reduce``, are those of the weights as they are now.

    ``start``: int64 ``[N]``, each prompt's start; ``keys`` and ``group``: key and prompt of each root; ``splits``:
    denoising step, counted through all chunks, to children per row; ``shared_noise``: chunks begin with the noise of
    their prompt's first row (DanceGRPO); ``dynamics``: imagines in place of the task's own.
    """
    growing = _Growing.begin(task, start, list(keys), group, shared_noise, dynamics or task.dynamics)
    for chunk in range(task.config.chunks):
        growing.begin_chunk(chunk)
        for step in range(schedule.steps):
            growing.denoise(schedule, step, (splits or {}).get(chunk * schedule.steps + step, 1), reduce)
        growing.end_chunk()
    return growing.tree(start)


@dataclass
class _Growing:
    """The rows between two denoising steps."""

    task: AlignmentTask
    dynamics: FlowTransformer
    keys: list[Key]
    group: Tensor
    action: Tensor | None
    state: VideoState
    shared_noise: bool
    video: Tensor
    x: Tensor
    around: Surroundings
    chunk: int = 0
    commands: Tensor = field(default_factory=lambda: torch.empty(0))
    layers: list[Layer] = field(default_factory=list[Layer])
    evaluations: int = 0

    @classmethod
    def begin(
        cls,
        task: AlignmentTask,
        start: Tensor,
        keys: list[Key],
        group: Tensor,
        shared_noise: bool,
        dynamics: FlowTransformer,
    ) -> "_Growing":
        model, which = task.model, start.tolist()
        state = model.start([task.starts.records[i] for i in which]).select(group)
        action = None if task.starts.action is None else task.starts.action[start][group].to(model.device)
        video = state.memory[:, :0]
        around = Surroundings(state.reference, state.memory, video)
        return cls(task, dynamics, keys, group, action, state, shared_noise, video, video, around)

    def begin_chunk(self, chunk: int) -> None:
        model, self.chunk = self.task.model, chunk
        span = slice(chunk * model.chunk_length, (chunk + 1) * model.chunk_length)
        condition, self.commands = model.chunk_condition(
            self.state, None if self.action is None else self.action[:, span]
        )
        self.around = Surroundings(self.state.reference, self.state.memory, condition)
        self.x = self._noise(self._chunk_keys(), "chunk", chunk)

    def _chunk_keys(self) -> list[Key]:
        if not self.shared_noise:
            return self.keys
        first: dict[int, Key] = {}
        return [first.setdefault(prompt, key) for prompt, key in zip(self.group.tolist(), self.keys, strict=True)]

    def _noise(self, keys: list[Key], *what: Name) -> Tensor:
        model = self.task.model
        return key_noise(self.task.seed, keys, what, model.noise_shape, model.device)

    def denoise(self, schedule: Schedule, step: int, children: int, reduce: str) -> None:
        """Take one step in every row, after splitting each into ``children``; they share one network evaluation."""
        rows = torch.full((len(self.keys),), step, device=self.x.device)
        with self.task.model.autocast():
            clean = self.around.predict(self.dynamics, self.x, schedule.level(rows))
        self.evaluations += len(rows)
        mean, std = schedule.transition(self.x, clean, rows)
        parent = torch.arange(len(self.keys)).repeat_interleave(children)
        if children > 1:
            self._split(parent, children)
            mean, std = mean[parent.to(mean.device)], std[parent.to(std.device)]
        before, self.x, logp = self.x, mean, std.new_zeros(len(self.keys))
        if step in schedule.noisy:
            noise = self._noise(self.keys, "step", self.chunk, step)
            self.x = mean + expand_sigma(std, mean) * noise
            logp = gaussian_log_prob(self.x, mean, std, reduce)
        last = step == schedule.steps - 1
        self.layers.append(Layer(step, parent, self.group, before, self.x, logp, self.around, last))

    def _split(self, parent: Tensor, children: int) -> None:
        index = parent.to(self.x.device)
        self.keys = [(*key, child) for key in self.keys for child in range(children)]
        self.group, self.x, self.video = self.group[parent], self.x[index], self.video[index]
        self.commands, self.state = self.commands[index], self.state.select(index)
        self.around = self.around.select(index)
        self.action = None if self.action is None else self.action[index]

    def end_chunk(self) -> None:
        self.state = self.task.model.remember(self.state, self.x, self.commands)
        self.video = torch.cat([self.video, self.x], dim=1)

    def tree(self, start: Tensor) -> VideoTree:
        return VideoTree(self.layers, self.video, self.group, start[self.group], self.keys, self.evaluations)
