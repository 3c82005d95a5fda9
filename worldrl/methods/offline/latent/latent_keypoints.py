"""Keypoints, the observation of agents in video latents: learned once per dataset by cloning the recorded chunks.

    min E_{(o, a)~D} ‖head(encoder(o)) − a‖²,  stopped where held-out episodes are cloned best

The head is dropped and the encoder frozen, with points in units of their deviations, so all agents of a dataset share
one space. The training takes seconds and follows from seed and rows, so no checkpoint stores it.

Shapes legend: ``N`` rows, ``S`` observation, ``A`` action.
"""

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

NAME = "latent-keypoints"  # name of the training and its random streams


@dataclass(frozen=True)
class KeypointTraining:
    """Training of the encoder; after a few hundred steps it overfits the episodes."""

    steps: int = 800  # optimizer steps; the weights of the best measurement are kept.
    batch: int = 128  # rows per step.
    learning_rate: float = 1e-3  # of AdamW, constant.
    weight_decay: float = 1e-2  # of AdamW.
    hidden: int = 256  # width of the head's two hidden layers.
    look_every: int = 50  # steps between two measurements on the held-out episodes.
    held_out: int = 5  # one in so many recorded episodes is held out.

    def __post_init__(self) -> None:
        require_at_least_one(self, ("steps", "batch", "hidden", "look_every"), of="keypoint training")
        if self.held_out < 2:
            raise SettingError(
                f"held_out must be at least 2, so that episodes are left to learn from, got {self.held_out}"
            )


@dataclass(frozen=True)
class KeypointReport:
    """Result of a training: the step of the stored weights, and R² of held-out chunks (1 perfect, 0 as good as the mean)."""

    step: int
    explained: float


class Cloner(nn.Module):
    """A measured encoder and the head that clones from it; what follows the latents is standardised here."""

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
    """R² of chunks ``[N, A]`` that follow observations ``[N, S]``, against the constant ``mean`` ``[A]``."""
    missed = sum(float((cloner(o) - a).square().sum()) for o, a in zip(obs.split(512), action.split(512), strict=True))
    return 1 - missed / max(float((action - mean).square().sum()), 1e-12)


def parted(source: Tensor, every: int) -> tuple[Tensor, Tensor]:
    """Hold out every ``every``-th episode: row indices of both parts. SettingError: fewer than two episodes."""
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
    """Learn the keypoints of a dataset's latents, of ``latent_shape`` ``(c, h, w)``.

    Returns the frozen encoder on the rows' device, and the report on held-out episodes. Raises SettingError: fewer
    than two episodes, or a number out of range; NonFiniteError: the loss is not finite.
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

    def measure(step: int) -> None:
        nonlocal best
        if (step + 1) % plan.look_every and step + 1 < plan.steps:
            return
        found = explained(cloner, obs[held], action[held], action[learned].mean(dim=0))
        if found > best[1]:
            best = (step + 1, found, copy.deepcopy(encoder))

    optimizer = adamw(cloner, plan.learning_rate, plan.weight_decay)
    fit(NAME, modules={"cloner": cloner}, optimizer=optimizer, loss=loss, steps=plan.steps, on_step=measure)
    step, share, kept = best
    with torch.no_grad():
        kept.standardise(torch.cat([kept(part) for part in obs[learned].split(ROWS_AT_ONCE)]))
    return kept.frozen(), KeypointReport(step, share)
