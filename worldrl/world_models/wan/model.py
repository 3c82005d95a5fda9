"""A Wan-class video world model: WoVR's recipe on diffusers' transformer and autoencoder, behind the usual surface.

Reference and memory are kept as images and encoded before each chunk, as a training clip's were: the causal
autoencoder makes latents that depend on what came before. The actions behind the memory are kept too: an arm still
follows them. An outcome ensemble's probability counts; without one the joint success head's.

Shapes legend: ``B`` rows, ``V`` views, ``F`` frames per chunk, ``K`` memory frames, ``L`` actions per chunk, ``M`` actions behind
the memory, ``A`` numbers of an action and of a command, ``f`` latent frames of a clip, ``c h w`` latent, ``Y X``
pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldrl.core.device import autocast
from worldrl.core.embodiment import AnyEmbodiment, embodiment_from_json, integrate_commands
from worldrl.core.errors import ActionError, ArtefactError, SettingError
from worldrl.core.observation import MEASURED, OBSERVATION
from worldrl.core.rng import initial_weights, row_noise
from worldrl.core.storage.artefact import Shared, read_artefact, write_artefact
from worldrl.core.storage.learned import Learned
from worldrl.core.types import Imagined, ResetRecord
from worldrl.data.windows.batch import WindowBatch
from worldrl.world_models.video.chunks import Chunked, check_chunk, check_imagined
from worldrl.world_models.video.extension import overlaid
from worldrl.world_models.video.heads import OutcomeEnsemble, ensemble_success
from worldrl.world_models.wan.adapter import add_adapter, is_trained
from worldrl.world_models.wan.codec import WanCodec
from worldrl.world_models.wan.config import KIND, WanConfig
from worldrl.world_models.wan.dynamics import WanDynamics, WanStateHead, WanSuccess
from worldrl.world_models.wan.folder import WanBase, download_command, load_transformer, load_vae, open_base
from worldrl.world_models.wan.state import WanState, clip_action, context_frames, start_arrays


class WanWorldModel(Chunked[WanConfig], Shared, nn.Module):
    """Latent video diffusion on published Wan weights (``base`` for their identity) as a simulator."""

    compute_dtype = torch.float32  # number type of imagination; the autoencoder has its own
    backbone = "wan"
    gripper = None  # no head reads the gripper's opening

    def __init__(self, config: WanConfig, embodiment: AnyEmbodiment, base: WanBase, transformer: Any, vae: Any):
        super().__init__()
        self.config, self.embodiment, self.base = config, embodiment, base
        views = len(config.cameras)
        self.codec = WanCodec(vae, config.codec, views)
        self.dynamics = WanDynamics(transformer, config.dynamics, self.codec.latent_shape, embodiment.actions, views)
        self.success = WanSuccess(self.dynamics.width, config.success, config.dynamics.chunk_frames)
        add_adapter(self.dynamics.transformer, config.dynamics)
        head = config.outcome
        self.outcome = (
            OutcomeEnsemble(config.success.width, head.width, head.ensemble_size) if head.ensemble_size else None
        )
        sizes = config.dynamics.chunk_frames, 2 * embodiment.actions.size, len(embodiment.state_names)
        measured = config.state == MEASURED
        self.pose_head = None  # a measured pose is estimated from the actions alone
        self.state_head = WanStateHead(self.dynamics.width, config.success, *sizes) if measured else None
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(is_trained(name, config.dynamics))
        self.eval()

    @classmethod
    def from_base(
        cls, folder: Path | str, config: WanConfig, embodiment: AnyEmbodiment, *, seed: int
    ) -> "WanWorldModel":
        """Begin with published weights, and action channels and success head of ``seed``, on the CPU.

        Raises ArtefactError: the folder is missing, damaged or of another class; SettingError: configuration and
        folder do not fit; MissingExtraError: diffusers or peft is not installed.
        """
        base = open_base(folder)
        dtype = getattr(torch, config.dynamics.base_dtype)
        transformer, vae = load_transformer(base, dtype), load_vae(base)
        with initial_weights(seed, "wan-world-model"):
            return cls(config, embodiment, base, transformer, vae)

    def extended(self, config: WanConfig, *, seed: int) -> "WanWorldModel":
        """Return the model under a configuration that fits it, with the views and the state head it adds, untrained."""
        if (config.cameras, config.state) == (self.config.cameras, self.config.state):
            self.config, self.codec.config, self.dynamics.config = config, config.codec, config.dynamics
            return self
        larger = WanWorldModel.from_base(self.base.folder, config, self.embodiment, seed=seed).to(self.device)
        larger.load_trained(overlaid(larger.trained(), self.trained()))
        return larger

    @cached_property
    def base_hash(self) -> str:
        """Identity of the published weights; the first look reads all of them."""
        return self.base.hash()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.codec.mean.device

    @property
    def noise_shape(self) -> tuple[int, int, int, int]:
        """Shape of the standard normal noise that one row's chunk is made of."""
        return self.dynamics.noise_frames, *self.codec.latent_shape

    def autocast(self) -> torch.autocast:
        """Compute in ``compute_dtype``; SettingError: float32, but the published weights are kept in bfloat16."""
        if self.compute_dtype == torch.float32 and self.config.dynamics.base_dtype != "float32":
            raise SettingError("dtype: these published weights are kept in bfloat16; give dtype=bfloat16 (or auto)")
        return autocast(self.device, self.compute_dtype)

    # -- rollout ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self, records: Sequence[ResetRecord]) -> WanState:
        """Begin one rollout per record. Raises SettingError: a record's images or actions have another size."""
        arrays = start_arrays(records, self.config, self.embodiment.actions)
        with self.autocast():
            instruction = self.embed([record.instruction for record in records]).float()
        kept = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        belief = instruction.new_zeros(len(records), 0) if self.outcome is None else self.outcome.blank(len(records))
        measured = self.first_state(records, self.device)
        return WanState(**kept, instruction=instruction, belief=belief, measured=measured)

    @torch.no_grad()
    def imagine(
        self, state: WanState, action: Tensor, *, generators: Sequence[torch.Generator]
    ) -> tuple[WanState, Imagined]:
        """Predict one chunk of ``action [B, L, A]``; its ``latent`` is the whole clip, which :meth:`decode` needs.

        Raises ActionError: wrong or non-finite; NonFiniteError: the latents are not finite. ``state`` is untouched.
        """
        check_chunk(action, (state.rows, self.chunk_length, self.embodiment.actions.size), generators)
        action = action.to(self.device)
        commands = integrate_commands(self.embodiment, state.command, action)
        noise = row_noise(generators, self.noise_shape, self.device)
        with self.autocast():
            clip, features = self._clip(state, action, noise)
            probability, uncertainty, belief = self._judge(features, state)
            measured, spread = self.read_state(features, state.command, commands)
        check_imagined(clip)
        newest = None if measured is None else measured[:, -1]
        after = replace(self._remember(state, clip, action, commands), belief=belief, measured=newest)
        return after, Imagined(clip, self.frame_steps, commands, probability, uncertainty, measured, spread)

    def _clip(self, state: WanState, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        context = self.codec.encode(context_frames(state.reference, state.memory, self.config.dynamics))
        clipped = clip_action(state.null_action, state.memory_action, action)
        future, features = self.dynamics.sample(noise, context[:, 0], context[:, 1:], clipped)
        return torch.cat([context, future], dim=1), features

    def _judge(self, features: Tensor, state: WanState) -> tuple[Tensor, Tensor | None, Tensor]:
        if self.outcome is None:
            return torch.sigmoid(self.success(features, state.instruction).float()), None, state.belief
        votes, belief = self.outcome(self.find(features, state.instruction), state.belief)
        return *ensemble_success(votes), belief

    def _remember(self, state: WanState, clip: Tensor, action: Tensor, commands: Tensor) -> WanState:
        memory = torch.cat([state.memory, self.decode(clip, state.reference)], dim=1)[:, -self.memory_frames :]
        taken = torch.cat([state.memory_action, action], dim=1)[:, -self.config.dynamics.memory_actions :]
        return replace(state, memory=memory, memory_action=taken, command=commands[:, -1])

    def embed(self, instruction: Sequence[str]) -> Tensor:
        """Encode ``B`` instructions as ``[B, d]``."""
        return self.success.embed(instruction)

    def find(self, features: Tensor, instruction: Tensor) -> Tensor:
        """Return what the success head finds in features of all tokens, frame by frame: ``[B, F, width]``."""
        return self.success.find(features, instruction)

    @torch.no_grad()
    def decode_newest(self, state: WanState, count: int) -> Tensor:
        """Return the newest ``count`` frames of each row: uint8 ``[B, count, V Y, X, 3]``."""
        return state.memory[:, -count:]

    @torch.no_grad()
    def decode(self, latent: Tensor, first: Tensor) -> Tensor:
        """Decode the future frames of whole clips ``[B, f, c, V h, w]``: uint8 ``[B, F, V Y, X, 3]``."""
        del first  # a clip begins with it
        return self.codec.decode(latent)[:, -self.config.dynamics.chunk_frames :]

    def restore(self, data: dict[str, Tensor]) -> WanState:
        """Rebuild a state from :meth:`WanState.state_dict`; ActionError when it is not one of this model."""
        wanted = self.memory_frames, *self.config.sheet
        if tuple(data["memory"].shape[1:]) != wanted:
            raise ActionError(f"memory must be [B, {', '.join(map(str, wanted))}], got {tuple(data['memory'].shape)}")
        return WanState(**data)

    # -- recorded windows ------------------------------------------------------------------------------------

    def window_start(self, batch: WindowBatch) -> WanState:
        """Begin where windows of images begin, without instruction and belief."""
        nothing = batch.command.new_zeros(len(batch.command), 0)
        given = (batch.reference, batch.memory, batch.null_action, batch.memory_action, batch.command)
        return WanState(*given, instruction=nothing, belief=nothing)

    def follow(
        self, state: WanState, batch: WindowBatch, steps: slice, noise: Tensor, hidden: Tensor | None = None
    ) -> tuple[WanState, Tensor]:
        """Imagine a chunk of windows, see :class:`~.following.Follower`; ActionError: rows without actions."""
        if hidden is not None:
            raise ActionError("hidden: a Wan world model does not plan; every row needs its actions")
        action = batch.action[:, steps]
        clip, features = self._clip(state, action, noise)
        return self._remember(state, clip, action, batch.commands[:, steps]), features

    def encoded(self, batch: WindowBatch) -> WindowBatch:
        """Replace a window's images by the latents of its clip, encoded as a whole."""
        given = context_frames(batch.reference, batch.memory, self.config.dynamics)
        latent = self.codec.encode(torch.cat([given, batch.frames], dim=1))
        context = self.config.dynamics.context_latents
        return replace(batch, reference=latent[:, 0], memory=latent[:, 1:context], frames=latent[:, context:])

    def window_condition(self, batch: WindowBatch, steps: slice, hidden: Tensor | None) -> Tensor:
        """Return the actions of windows' clips; those of ``steps`` are the future's. No row may be ``hidden``."""
        if hidden is not None:
            raise ActionError("hidden: a Wan world model does not plan; every row needs its actions")
        return clip_action(batch.null_action, batch.memory_action, batch.action[:, steps])

    # -- folder ----------------------------------------------------------------------------------------------

    def trained(self) -> dict[str, Tensor]:
        """Return what the published folder does not hold, by name."""
        return {name: value for name, value in self.state_dict().items() if is_trained(name, self.config.dynamics)}

    def load_trained(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy :meth:`trained`'s tensors in; ArtefactError when names or sizes are others."""
        own = self.trained()
        if odd := sorted(set(own) ^ set(tensors)):
            raise ArtefactError(f"weights do not fit this model: {odd[0]} and {len(odd) - 1} more are on one side only")
        for name, value in own.items():
            if value.shape != tensors[name].shape:
                raise ArtefactError(f"{name}: is {list(tensors[name].shape)}, this model's is {list(value.shape)}")
            value.copy_(tensors[name])

    def round_trained(self, dtype: torch.dtype) -> None:
        """Round what is trained to ``dtype``, so that what is measured is what a smaller file will hold."""
        self.load_trained({name: value.to(dtype).to(value.dtype) for name, value in self.trained().items()})

    def save(
        self,
        folder: Path,
        *,
        store_dtype: torch.dtype | None = None,
        parents: Sequence[dict[str, Any]] = (),
        learned: Learned | None = None,
    ) -> None:
        """Write what was trained, and the identity of the published folder; ``learned``: from which data."""
        path = str(self.base.folder.resolve())
        base = {"path": path, "hash": self.base_hash}
        robot = {"embodiment": self.embodiment.to_json(), OBSERVATION: self.observation.to_json()}
        config = {**self.config.to_json(), **robot, "base": base}
        lineage = [*parents, base]
        write_artefact(
            folder,
            kind=KIND,
            config=config,
            tensors=self.trained(),
            files=None if learned is None else learned.files(),
            store_dtype=store_dtype,
            parents=lineage,
        )

    @classmethod
    def load(
        cls, folder: Path, device: torch.device | str = "cpu", *, base: Path | str | None = None
    ) -> "WanWorldModel":
        """Read :meth:`save`'s folder onto its published weights, in ``base`` or where they were at the saving.

        Raises ArtefactError: either folder is missing or damaged, or the published weights are others.
        """
        artefact = read_artefact(folder, kind=KIND)
        try:
            stored = artefact.config["base"]
            config = WanConfig.from_json(artefact.config)
            embodiment = embodiment_from_json(artefact.config["embodiment"])
        except (KeyError, TypeError, ValueError) as error:
            raise ArtefactError(f"{folder}: its config does not fit this version: {error}") from error
        where = _find_base(folder, stored["path"] if base is None else base)
        model = cls.from_base(where, config, embodiment, seed=0)
        if model.base_hash != stored["hash"]:
            raise ArtefactError(
                f"{folder}: was trained on other weights than those in {where} (hash {stored['hash'][:12]}, found "
                f"{model.base_hash[:12]}); give the folder it was trained on"
            )
        model.observation.require_stored(artefact.config, folder)
        model.load_trained(artefact.tensors)
        return model.to(device).eval()


def _find_base(folder: Path, base: Path | str) -> Path:
    if not Path(base).is_dir():
        raise ArtefactError(
            f"{folder}: the published weights it builds on are not at {base}; move them or link them there, or download "
            f"them: {download_command(Path(base))}"
        )
    return Path(base)
