"""What every alignment method is given: a video model to train, where its videos begin, and what they are worth.

Shapes legend: ``E`` starts, ``N`` prompts of an iteration, ``G`` videos per prompt, ``B = N G``, ``K`` reward terms,
``T`` imagined frames of a video, ``U`` chunks, ``L`` control steps per chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import NonFiniteError, SettingError, require_at_least_one
from worldrl.core.interfaces import Logs, RewardMix, VideoReward
from worldrl.core.types import ImaginedVideos, ResetRecord, first_frames
from worldrl.methods.rl.config import PartNames
from worldrl.methods.rl.groups import group_mean
from worldrl.rewards.mixing import group_deviation
from worldrl.world_models.video.flow_transformer import FlowTransformer
from worldrl.world_models.video.model import VideoWorldModel


@dataclass
class AlignmentConfig:
    """Settings that all methods share."""

    iterations: int = 60  # batches of videos.
    prompts: int = 8  # starts ``N`` per iteration.
    group_size: int = 8  # videos ``G`` per start; BranchGRPO has as many as its tree has leaves.
    chunks: int = 4  # length of a video ``U``.
    learning_rate: float = 3e-5  # AdamW.
    weight_decay: float = 0.0  # AdamW.
    clip_norm: float = 1.0  # largest gradient norm.
    epochs: int = 1  # passes over each batch.
    # denoising steps (or finished chunks) per gradient step at most; those of an iteration have about as many.
    minibatch: int = 64
    advantage_clip: float = 5.0  # advantages are clipped to ± this.
    checkpoint_every: int = 5  # iterations between checkpoints.
    parts: PartNames = field(default_factory=PartNames)  # other parts than the method's own, by name.

    def __post_init__(self) -> None:
        require_at_least_one(
            self, ("iterations", "prompts", "chunks", "epochs", "minibatch", "checkpoint_every"), of="alignment"
        )
        if self.group_size < 2:
            raise SettingError(f"alignment.group_size must be at least 2, got {self.group_size}")
        if self.advantage_clip <= 0:
            raise SettingError(f"alignment.advantage_clip must be positive, got {self.advantage_clip}")


@dataclass(frozen=True)
class Starts:
    """Where videos begin."""

    records: Sequence[ResetRecord]  # ``E`` start states.
    # float32 ``[E, U L, A]``, the model's actions; None lets it plan from the instruction.
    action: Tensor | None = None

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class AlignmentTask:
    """A video model, its starts, and the reward it is aligned with."""

    model: VideoWorldModel  # its dynamics are trained in place.
    starts: Starts  # where videos begin.
    reward: VideoReward  # frozen.
    mix: RewardMix  # makes one number of the reward's terms.
    frame_s: float  # seconds between imagined frames.
    config: AlignmentConfig  # shared settings.
    seed: int  # root of every draw.
    # that number is scaled already (GDPO): advantages are divided by the deviation over the whole batch, so that a
    # group whose terms cancel stays small, and not by each group's own.
    batch_scale: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.model.dynamics, FlowTransformer) or self.model.config.dynamics.refinement_steps:
            raise SettingError("alignment needs a flow transformer without refinement (dynamics.refinement_steps=0)")
        if self.model.config.dynamics.flow_map:
            raise SettingError(
                "alignment steps along the flow itself, and a flow map would be left behind; give the weights from before "
                "training.flow_map_steps"
            )
        if not len(self.starts):
            raise SettingError("alignment needs at least one start, got none")

    @property
    def dynamics(self) -> FlowTransformer:
        """The network that is trained."""
        assert isinstance(self.model.dynamics, FlowTransformer)
        return self.model.dynamics


def imagined_videos(task: AlignmentTask, latent: Tensor, start: Tensor) -> ImaginedVideos:
    """Show latents ``[B, T, c, h, w]`` that began at ``start`` ``[B]`` as their rewards see them."""
    records = [task.starts.records[i] for i in start.tolist()]
    now = torch.stack([torch.from_numpy(record.memory[-1]) for record in records])[:, None]
    frames = torch.cat([now, task.model.decode(latent, first_frames(records)).cpu()], dim=1)
    sentences = [record.instruction for record in records]
    action = acted(task, start, latent.shape[1])
    command = None if action is None else commanded(task, start, action)
    return ImaginedVideos(frames, latent.cpu(), task.frame_s, sentences, command, action)


def acted(task: AlignmentTask, start: Tensor, frames: int) -> Tensor | None:
    """Return the actions that lead to ``frames`` frames ``[B, frames s, A]``; None of planned videos."""
    return None if task.starts.action is None else task.starts.action[start][:, : frames * task.model.frame_stride]


def commanded(task: AlignmentTask, start: Tensor, action: Tensor) -> Tensor:
    """Return the robot's command at the first frame and at those that ``action`` ``[B, T s, A]`` leads to, ``[B, 1 + T, A]``."""
    stride = task.model.frame_stride
    first = torch.stack([torch.from_numpy(task.starts.records[i].command) for i in start.tolist()])
    after = integrate_commands(task.model.embodiment, first, action)
    return torch.cat([first[:, None], after[:, stride - 1 :: stride]], dim=1)


def judge(task: AlignmentTask, latent: Tensor, start: Tensor) -> Tensor:
    """Score videos ``[B, T, c, h, w]``: terms ``[B, K]``. Raises SettingError (other shape) and NonFiniteError."""
    terms = task.reward.score(imagined_videos(task, latent, start)).float().cpu()
    names = task.reward.names
    if terms.shape != (len(latent), len(names)):
        raise SettingError(f"reward: {len(latent)} videos and terms {names} need that shape, got {tuple(terms.shape)}")
    if not bool(terms.isfinite().all()):
        bad = names[int((~terms.isfinite()).any(dim=0).nonzero()[0])]
        raise NonFiniteError(f"reward term {bad!r} is not finite; the model was not updated")
    return terms


def reward_logs(task: AlignmentTask, terms: Tensor, group: Tensor) -> Logs:
    """Every term's mean over the videos and its deviation within groups, and the share of groups worth the same throughout."""
    value = task.mix(terms, group)
    apart = group_mean((value - group_mean(value, group)[group]).abs(), group)
    named = {"reward": terms.mean(dim=0), "spread": group_deviation(terms, group).mean(dim=0)}
    of_terms = {f"{kind}/{name}": v[k] for kind, v in named.items() for k, name in enumerate(task.reward.names)}
    return {**of_terms, "align/groups_without_signal": (apart < 1e-9).float().mean()}
