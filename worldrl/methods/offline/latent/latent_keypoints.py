"""What an agent in video latents sees, learned once per dataset: keypoints, by cloning the recorded chunks.

    min E_{(o, a)~D} ‖head(encoder(o)) − a‖²,  stopped where episodes that it does not learn from are cloned best

The head is thrown away and the encoder frozen, its points in units of their deviations, so that all agents of a dataset
learn in the same space. Nothing lies in checkpoints: the training takes seconds and follows from seed and rows alone, so
whoever is killed makes it again.

Shapes legend: ``N`` rows, ``S`` observation, ``A`` action.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.interfaces import Logs
from worldrl.core.rng import initial_weights, stream
from worldrl.core.training.fit import fit
from worldrl.core.training.optimizer import adamw
from worldrl.rollout.imagined.latent_world import ROWS_AT_ONCE, RecordedLatents
from worldrl.world_models.latent.keypoints import STD_FLOOR, KeypointEncoder

NAME = "latent-keypoints"
"""Of the training and its random streams."""


@dataclass(frozen=True)
class KeypointTraining:
    """How the encoder learns. Beyond a few hundred steps it learns the episodes by heart.

    Attributes:
        steps: optimizer steps, of which the best look is kept.
        batch: rows per step.
        learning_rate: of AdamW, constant.
        weight_decay: of AdamW.
        hidden: width of the head's two hidden layers.
        look_every: steps between two looks at the held-out episodes.
        held_out: every so many-th recorded episode is held out.
    """

    steps: int = 800
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    hidden: int = 256
    look_every: int = 50
    held_out: int = 5

    def __post_init__(self) -> None:
        """Check the ranges."""
        require_at_least_one(self, ("steps", "batch", "hidden", "look_every"), of="keypoint training")
        if self.held_out < 2:
            raise SettingError(
                f"held_out must be at least 2, so that episodes are left to learn from, got {self.held_out}"
            )


@dataclass(frozen=True)
class KeypointReport:
    """What came of a training.

    Attributes:
        step: after which the weights were kept.
        explained: R² of the chunks of held-out episodes, 1 perfect, 0 as good as the mean chunk.
    """

    step: int
    explained: float


class Cloner(nn.Module):
    """An encoder and the head that clones from what it gives.

    Args:
        encoder: of observations, measured already.
        obs: float32 ``[N, S]``, whose numbers beside the latents are standardised here.
        action_size: ``A``.
        hidden: width.
    """

    def __init__(self, encoder: KeypointEncoder, obs: Tensor, action_size: int, hidden: int) -> None:
        super().__init__()
        self.encoder = encoder
        rest = obs[:, encoder.latent_size :]
        points = torch.zeros(encoder.points_size)
        self.mean = torch.cat([points, rest.mean(dim=0)])
        self.std = torch.cat([points + 1, rest.std(dim=0, correction=0) + STD_FLOOR])
        self.head = nn.Sequential(
            nn.Linear(len(self.mean), hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, action_size),
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Map observations ``[B, S]`` to chunks ``[B, A]``."""
        return self.head((self.encoder(obs) - self.mean) / self.std)


@torch.no_grad()
def explained(cloner: Cloner, obs: Tensor, action: Tensor, mean: Tensor) -> float:
    """R² of chunks ``[N, A]`` that follow observations ``[N, S]``, against always telling ``mean`` ``[A]``."""
    missed = sum(float((cloner(o) - a).square().sum()) for o, a in zip(obs.split(512), action.split(512), strict=True))
    return 1 - missed / max(float((action - mean).square().sum()), 1e-12)


def parted(source: Tensor, every: int) -> tuple[Tensor, Tensor]:
    """Return the rows to learn from and those held out, int64 each: every ``every``-th recorded episode is.

    Args:
        source: int64 ``[N]``: the recorded episode of each row.
        every: at least 2.

    Raises:
        SettingError: fewer than two episodes.
    """
    episodes = source.unique()
    if len(episodes) < 2:
        raise SettingError(
            f"keypoints are learned with held-out episodes; {len(episodes)} with a whole chunk is too few, record at least 2"
        )
    held = torch.isin(source, episodes[::every])
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def fit_keypoints(
    latents: RecordedLatents,
    latent_shape: tuple[int, int, int],
    keypoints: int,
    training: KeypointTraining | None = None,
    *,
    seed: int,
) -> tuple[KeypointEncoder, KeypointReport]:
    """Learn where to look in a dataset's latents.

    Args:
        latents: the rows, of latents still; with a stride of 1 there are most.
        latent_shape: ``(c, h, w)``.
        keypoints: how many.
        training: how it learns; defaults where None.
        seed: of weights and batches.

    Returns:
        The encoder, frozen, on the rows' device, and how well its head cloned episodes that it did not learn from.

    Raises:
        SettingError: fewer than two episodes, or a number out of range.
        NonFiniteError: the loss is not finite.
    """
    plan = training or KeypointTraining()
    learned, held = parted(latents.source, plan.held_out)
    obs, action = latents.rows.obs, latents.rows.action
    with initial_weights(seed, NAME, "weights"):
        encoder = KeypointEncoder(latent_shape, keypoints)
        encoder.measure(obs[learned])
        cloner = Cloner(encoder, obs[learned], action.shape[1], plan.hidden)
    best = (0, float("-inf"), copy.deepcopy(encoder))

    def loss(step: int) -> tuple[Tensor, Logs]:
        rows = learned[torch.randint(len(learned), (plan.batch,), generator=stream(seed, NAME, step))]
        return (cloner(obs[rows]) - action[rows]).square().mean(), {}

    def look(step: int) -> None:
        nonlocal best
        if (step + 1) % plan.look_every and step + 1 < plan.steps:
            return
        found = explained(cloner, obs[held], action[held], action[learned].mean(dim=0))
        if found > best[1]:
            best = (step + 1, found, copy.deepcopy(encoder))

    optimizer = adamw(cloner, plan.learning_rate, plan.weight_decay)
    fit(NAME, modules={"cloner": cloner}, optimizer=optimizer, loss=loss, steps=plan.steps, on_step=look)
    step, share, kept = best
    with torch.no_grad():
        kept.standardise(torch.cat([kept(part) for part in obs[learned].split(ROWS_AT_ONCE)]))
    return kept.frozen(), KeypointReport(step, share)
