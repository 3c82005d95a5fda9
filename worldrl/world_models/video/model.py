"""The video world model: codec, dynamics and heads.

A rollout stays in latent space; only frames for the policy are decoded.

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``K`` memory frames, ``L`` actions, ``A`` numbers of an action and
of a command, ``U`` chunks of a window.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.device import autocast
from worldrl.core.embodiment import AnyEmbodiment, embodiment_from_json, integrate_commands
from worldrl.core.errors import ActionError
from worldrl.core.observation import MEASURED, OBSERVATION
from worldrl.core.rng import row_noise
from worldrl.core.storage.artefact import Shared, read_artefact, write_artefact
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.weights import fitting, load_weights
from worldrl.core.types import Imagined, ResetRecord
from worldrl.data.windows.batch import WindowBatch
from worldrl.world_models.video.chunks import Chunked, check_chunk, check_imagined
from worldrl.world_models.video.codec import IdentityCodec, PatchCodec, as_rows, as_sheets, to_uint8, to_unit
from worldrl.world_models.video.config import CodecKind, DynamicsKind, VideoWorldModelConfig
from worldrl.world_models.video.dynamics import hide_actions
from worldrl.world_models.video.flow_transformer import FlowTransformer
from worldrl.world_models.video.following import VideoState, latent_start
from worldrl.world_models.video.heads import (
    GripperHead,
    OutcomeEnsemble,
    StateHead,
    SuccessHead,
    ensemble_success,
    named_as_ensemble,
)

if TYPE_CHECKING:
    from worldrl.world_models.video.unet import EdmUNet

KIND = "video-world-model"


class VideoWorldModel(Chunked[VideoWorldModelConfig], Shared, nn.Module):
    """Latent video diffusion as a simulator of a robot; ``compute_dtype`` bfloat16 may double its speed."""

    backbone = "video"

    def __init__(self, config: VideoWorldModelConfig, embodiment: AnyEmbodiment):
        from worldrl.world_models.video.restorer import FrameRestorer

        super().__init__()
        self.config = config
        self.embodiment = embodiment
        self.compute_dtype = torch.float32
        self.codec = make_codec(config)
        self.dynamics = make_dynamics(config, self.codec.latent_shape, embodiment.actions)
        sizes = (self.dynamics.width, self.dynamics.heads, config.dynamics.chunk_frames)
        self.success = SuccessHead(*sizes)
        self.gripper = GripperHead(*sizes, len(embodiment.actions.grippers))
        self.outcome = OutcomeEnsemble(2 * self.dynamics.width, config.outcome.width, config.outcome.ensemble_size)
        self.restorer = FrameRestorer(config.restorer, len(config.cameras)) if config.restorer.width else None
        numbers = 2 * embodiment.actions.size, len(embodiment.state_names)
        self.state_head = StateHead(*sizes, *numbers) if config.state == MEASURED else None
        self.pose_head = StateHead(*sizes, numbers[0], pose) if (pose := embodiment.measured_pose) else None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.success.frame.device

    @property
    def noise_shape(self) -> tuple[int, int, int, int]:
        """Shape of the standard normal noise of one row's chunk."""
        return self.dynamics.noise_frames, *self.codec.latent_shape

    def autocast(self) -> torch.autocast:
        """Compute in ``compute_dtype``; weights and states stay float32."""
        return autocast(self.device, self.compute_dtype)

    # -- rollout ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self, records: Sequence[ResetRecord]) -> VideoState:
        """Begin one rollout per record."""
        kept, row = distinct(records)
        stacked = np.stack([np.concatenate([r.reference[None], r.memory]) for r in kept])
        frames = torch.from_numpy(stacked).to(self.device)
        with self.autocast():
            latent = self.codec.encode(to_unit(frames)).float()[row]  # [B, 1+K, c, h, w]
            instruction = self.success.embed([r.instruction for r in records]).float()
        command = torch.from_numpy(np.stack([r.command for r in records])).to(self.device)
        belief = self.outcome.blank(len(records))
        measured = self.first_state(records, self.device)
        return VideoState(latent[:, 0], latent[:, 1:], command, instruction, belief, frames[row, 0], measured)

    @torch.no_grad()
    def imagine(
        self, state: VideoState, action: Tensor | None, *, generators: Sequence[torch.Generator]
    ) -> tuple[VideoState, Imagined]:
        """Predict one chunk of ``action [B, L, A]`` (None plans it; the command then stays), a generator per row.

        Raises ActionError: wrong or non-finite, or none for a model that does not plan; NonFiniteError: the latents
        are not finite. ``state`` is unchanged.
        """
        if action is not None:
            check_chunk(action, (state.rows, self.chunk_length, self.embodiment.actions.size), generators)
        elif len(generators) != state.rows:
            raise ActionError(f"imagine needs one generator per row: {state.rows}, got {len(generators)}")
        condition, commands = self.chunk_condition(state, action)
        noise = row_noise(generators, self.noise_shape, self.device)
        with self.autocast():
            latent, features = self.sample(state, condition, noise)
            logits, belief = self.outcome(self.find(features, state.instruction), state.belief)
            measured, spread = self.read_state(features, state.command, commands)
            commands = self.seen_commands(features, state.command, commands)
        check_imagined(latent)
        after = replace(self.remember(state, latent, commands), belief=belief)
        if measured is not None:
            after = replace(after, measured=measured[:, -1])
        return after, Imagined(latent, self.frame_steps, commands, *ensemble_success(logits), measured, spread)

    def chunk_condition(self, state: VideoState, action: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the condition of each row's chunk, and its commands ``[B, L, A]``; see :meth:`imagine`."""
        if action is None:
            return self.plan(state), state.command[:, None].expand(-1, self.chunk_length, -1)
        action = action.to(self.device)
        commands = integrate_commands(self.embodiment, state.command, action)
        return self.condition(action, commands), commands

    def remember(self, state: VideoState, latent: Tensor, commands: Tensor) -> VideoState:
        """Append a chunk's latents ``[B, F, c, h, w]`` and commands ``[B, L, A]`` to a state."""
        memory = torch.cat([state.memory, latent], dim=1)[:, -self.memory_frames :]
        return replace(state, memory=memory, command=commands[:, -1])

    def embed(self, instruction: Sequence[str]) -> Tensor:
        """Encode ``B`` instructions as ``[B, d]``."""
        return self.success.embed(instruction)

    def find(self, features: Tensor, instruction: Tensor) -> Tensor:
        """Return both heads' findings in features ``[B, n, d]``, per frame: ``[B, F, 2d]``."""
        return torch.cat([self.success.find(features, instruction), self.gripper.find(features)], dim=-1)

    def sample(self, state: VideoState, condition: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample a chunk from ``noise``; return latents ``[B, F, c, h, w]`` and features ``[B, n, d]``."""
        return self.dynamics.sample(noise, state.reference, state.memory, condition)

    def condition(self, action: Tensor, commands: Tensor) -> Tensor:
        """Join scaled actions ``[B, L, A]`` with their scaled commands: ``[B, L, 2A]``."""
        robot = self.embodiment
        return torch.cat([robot.actions.scaled(action), robot.scaled_command(commands)], dim=-1)

    def plan(self, state: VideoState) -> Tensor:
        """Condition of a chunk without actions: the instruction alone; ActionError: the model does not plan."""
        if not self.config.dynamics.planning:
            raise ActionError(
                "action=None needs a world model that plans; train one with model.dynamics.planning=true and "
                "training.action_dropout above 0"
            )
        nothing = state.command.new_zeros(state.rows, self.chunk_length, 2 * self.embodiment.actions.size)
        return hide_actions(nothing, state.instruction, torch.ones(state.rows, dtype=torch.bool, device=self.device))

    @torch.no_grad()
    def decode_newest(self, state: VideoState, count: int) -> Tensor:
        """Decode the newest ``count`` frames of each row: uint8 ``[B, count, V Y, X, 3]``."""
        return self.decode(state.memory[:, -count:], state.first)

    @torch.no_grad()
    def decode(self, latent: Tensor, first: Tensor) -> Tensor:
        """Decode latents ``[B, T, c, V h, w]`` of rows with first sheets ``first``: uint8 ``[B, T, V Y, X, 3]``."""
        with self.autocast():
            frames = self.codec.decode(latent)
            if self.restorer is not None:
                whole = to_unit(first.to(self.device))[:, None].expand_as(frames)
                shape, views = frames.shape[:2], len(self.config.cameras)
                decoded, begun = (as_rows(part.flatten(0, 1), views) for part in (frames, whole))
                frames = as_sheets(self.restorer(decoded, begun), views).unflatten(0, shape)
        return to_uint8(frames.float())

    def restore(self, data: dict[str, Tensor]) -> VideoState:
        """Rebuild a state from :meth:`VideoState.state_dict`; ActionError when it is not one of this model."""
        if tuple(data["memory"].shape[1:]) != (self.memory_frames, *self.codec.latent_shape):
            raise ActionError(f"memory must be [B, {self.memory_frames}, c, h, w], got {tuple(data['memory'].shape)}")
        return VideoState(**data)

    # -- recorded windows ------------------------------------------------------------------------------------

    def encoded(self, batch: WindowBatch) -> WindowBatch:
        """Take windows of latents as they are."""
        return batch

    def window_start(self, batch: WindowBatch) -> VideoState:
        """Begin where windows begin, of latents or of images (uint8), without instruction and belief."""
        if batch.reference.dtype != torch.uint8:
            return latent_start(batch)
        frames = torch.cat([batch.reference[:, None], batch.memory], dim=1)
        latent = self.codec.encode(to_unit(frames.to(self.device))).half()  # as windows of latents are stored
        encoded = replace(batch, reference=latent[:, 0], memory=latent[:, 1:])
        return replace(latent_start(encoded), first=batch.reference)

    def follow(
        self, state: VideoState, batch: WindowBatch, steps: slice, noise: Tensor, hidden: Tensor | None = None
    ) -> tuple[VideoState, Tensor]:
        """Imagine a chunk of windows; see :meth:`worldrl.world_models.video.following.Follower.follow`."""
        latent, features = self.sample(state, self.window_condition(batch, steps, hidden), noise)
        return self.remember(state, latent, batch.commands[:, steps]), features

    def window_condition(self, batch: WindowBatch, steps: slice, hidden: Tensor | None) -> Tensor:
        """Make the condition of windows' control steps; rows of ``hidden`` use the instruction instead."""
        condition = self.condition(batch.action[:, steps], batch.commands[:, steps])
        if hidden is None:
            return condition
        return hide_actions(condition, self.success.embed(batch.instruction), hidden.to(condition.device))

    # -- folder ----------------------------------------------------------------------------------------------

    def save(
        self,
        folder: Path,
        *,
        store_dtype: torch.dtype | None = None,
        parents: Sequence[dict[str, Any]] = (),
        learned: Learned | None = None,
    ) -> None:
        """Write an artefact folder; ``store_dtype`` float16 halves it; ``learned`` is its training data, if known."""
        write_artefact(
            folder,
            kind=KIND,
            config={
                **self.config.to_json(),
                "embodiment": self.embodiment.to_json(),
                OBSERVATION: self.observation.to_json(),
            },
            tensors=self.state_dict(),
            files=None if learned is None else learned.files(),
            store_dtype=store_dtype,
            parents=parents,
        )

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> "VideoWorldModel":
        """Read :meth:`save`'s folder; ArtefactError when it is missing, damaged or of another kind."""
        from worldrl.world_models.video.restorer import of_each_view

        artefact = read_artefact(folder, kind=KIND)
        with fitting(artefact):
            config = VideoWorldModelConfig.from_json(artefact.config)
            model = cls(config, embodiment_from_json(artefact.config["embodiment"]))
            model.observation.require_stored(artefact.config, folder)
            if not any(name.startswith("pose_head.") for name in artefact.tensors):
                model.pose_head = None  # an earlier version integrated the actions alone
            load_weights(model, artefact, of_each_view(named_as_ensemble(artefact.tensors), len(config.cameras)))
        return model.to(device).eval()


def make_codec(config: VideoWorldModelConfig) -> PatchCodec | IdentityCodec:
    """Make the codec of a configuration."""
    if config.codec_kind is CodecKind.patch:
        return PatchCodec(config.codec, len(config.cameras))
    return IdentityCodec(config.codec, len(config.cameras))


def make_dynamics(
    config: VideoWorldModelConfig, latent_shape: tuple[int, int, int], actions: ActionSpec = TOOL_ACTIONS
) -> "FlowTransformer | EdmUNet":
    """Make the backend of a configuration, for frames of ``latent_shape`` ``(c, h, w)`` and a robot's actions."""
    from worldrl.world_models.video.unet import EdmUNet

    if config.dynamics.kind is DynamicsKind.flow_transformer:
        return FlowTransformer(config.dynamics, latent_shape, actions, len(config.cameras))
    pixels = config.codec_kind is CodecKind.identity
    return EdmUNet(config.dynamics, latent_shape, actions, len(config.cameras), pixels=pixels)


def distinct(records: Sequence[ResetRecord]) -> tuple[list[ResetRecord], Tensor]:
    """Return each record once, and its place in that list for every row ``[B]``; a group's rollouts share one record."""
    kept = {id(record): record for record in records}
    place = {key: row for row, key in enumerate(kept)}
    return list(kept.values()), torch.tensor([place[id(record)] for record in records])
