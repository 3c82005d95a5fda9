"""A diffusion model of whole trajectories, the first half of policy-guided diffusion (Jackson et al., RLC 2024).

EDM (Karras et al. 2022) over windows of ``L`` steps. The published size has 178 million parameters (at Hopper's
sizes) and needs a GPU; the default is the same network with 64 instead of 1024 features.

Shapes legend: ``B`` windows, ``L`` steps, ``S`` observation, ``A`` action, ``W = S + A + 2`` numbers per step.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import initial_weights, on_device, stream
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.typed import from_plain
from worldrl.core.training.ema import Ema
from worldrl.core.training.fit import FitReport, Loss, fit
from worldrl.core.training.optimizer import warmup_cosine
from worldrl.core.transitions import Transitions
from worldrl.diffusion.edm import denoised, draw_sigma, loss_weight, precondition
from worldrl.diffusion.flow import expand_sigma
from worldrl.nn.stored import StoredModule
from worldrl.nn.trajectory_unet import TrajectoryUNet
from worldrl.world_models.state.trajectory_windows import stack_windows, window_starts, window_transitions

CONSTANT = 1e-6  # A column with a standard deviation up to this is constant; its scale is 1


@dataclass
class TrajectoryDiffusionConfig:
    """Sizes and noise levels; the levels are the published ones."""

    length: int = 32  # steps ``L`` of a window.
    features: int = 64  # of the first level; 1024 is the published size, 64 what a CPU can sample in minutes.
    levels: int = 3  # resolutions of the U-Net.
    groups: int = 8  # of its norms.
    sigma_data: float = 1.0  # standard deviation of the normalised data.
    log_sigma_mean: float = -1.2  # mean of the training levels' logarithm.
    log_sigma_std: float = 1.2  # its standard deviation.
    sigma_low: float = 2e-3  # lowest level.
    sigma_high: float = 80.0  # highest level, where sampling starts.

    def __post_init__(self) -> None:
        if self.features < 8 or self.features % 8 or self.features % self.groups:
            raise SettingError(f"trajectory.features must be a multiple of 8 and of groups, got {self.features}")
        if self.length < max(2, 2 ** (self.levels - 1)):
            raise SettingError(f"trajectory.length must be at least 2^(levels - 1) and 2, got {self.length}")
        if not 0 < self.sigma_low < self.sigma_high:
            raise SettingError(f"trajectory.sigma_low must be in (0, sigma_high), got {self.sigma_low}")


@dataclass
class TrajectoryTraining:
    """How the trajectory model learns."""

    steps: int = 10_000  # optimizer steps; 0 where epochs are given.
    epochs: int = 0  # passes over the windows instead; 0 where steps are given.
    batch_size: int = 32  # windows per step.
    learning_rate: float = 2e-3  # Adam's highest.
    warmup: float = 0.1  # share of the steps in which it rises; a cosine down to zero follows.
    ema_decay: float = 0.9995  # per step; 0.9995 is the published 0.995 at every tenth.
    stride: int = 8  # steps between windows of one episode.
    validation_share: float = 0.05  # of the episodes, held out from training.
    checkpoint_steps: int = 1000  # steps between checkpoints.

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.epochs > 0):
            raise SettingError(
                f"trajectory training: give steps or epochs and set the other to 0, got steps={self.steps} and "
                f"epochs={self.epochs}"
            )

    def steps_for(self, windows: int) -> int:
        """Return the optimizer steps on ``windows`` windows; an epoch drops an incomplete batch."""
        return self.steps or self.epochs * max(1, windows // self.batch_size)


def published_trajectory_training() -> TrajectoryTraining:
    """Return the published length: 10,000 passes over the windows."""
    return TrajectoryTraining(steps=0, epochs=10_000)


def published_trajectory_diffusion() -> TrajectoryDiffusionConfig:
    """Return the published size: 1024, 2048 and 4096 features."""
    return TrajectoryDiffusionConfig(features=1024)


class TrajectoryDiffusion(StoredModule):
    """The denoiser D(x; σ) of normalised windows, with the statistics of its training."""

    kind = "trajectory-diffusion"
    mean: Tensor
    std: Tensor

    def __init__(self, config: TrajectoryDiffusionConfig, obs_size: int, action_size: int):
        super().__init__()
        self.config, self.obs_size, self.action_size = config, obs_size, action_size
        self.sizes = {"trajectory": asdict(config), "obs_size": obs_size, "action_size": action_size}
        self.net = TrajectoryUNet(self.width, config.features, config.levels, config.groups)
        self.register_buffer("mean", torch.zeros(self.width))
        self.register_buffer("std", torch.ones(self.width))

    @property
    def width(self) -> int:
        """Numbers ``W`` per step."""
        return self.obs_size + self.action_size + 2

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.mean.device

    def fit_statistics(self, windows: Tensor) -> None:
        """Set mean and deviation of every column from ``[n, L, W]``."""
        flat = windows.flatten(0, 1).double()
        std = flat.std(dim=0, correction=0)
        self.mean.copy_(flat.mean(dim=0))
        self.std.copy_(torch.where(std <= CONSTANT, torch.ones_like(std), std))

    def normalise(self, windows: Tensor) -> Tensor:
        """Map windows ``[..., W]`` to about unit variance."""
        return (windows - self.mean) / self.std

    def denormalise(self, x: Tensor) -> Tensor:
        """Invert :meth:`normalise`."""
        return x * self.std + self.mean

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return D(x; σ) for normalised windows ``[B, L, W]`` at levels ``[B]``."""
        scale = precondition(sigma, self.config.sigma_data)
        inputs = (expand_sigma(scale.c_in, x) * x).transpose(1, 2)
        return denoised(x, self.net(inputs, scale.c_noise).transpose(1, 2), scale)

    def loss(self, clean: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return EDM's loss on normalised windows ``[B, L, W]``: mean of λ(σ)·(D(x + σn; σ) - x)², a scalar."""
        c = self.config
        levels = {"lowest": c.sigma_low, "highest": c.sigma_high}
        sigma = draw_sigma(len(clean), mean=c.log_sigma_mean, std=c.log_sigma_std, **levels, generator=generator)
        noise = torch.randn(clean.shape, generator=generator, device=generator.device)
        error = self.denoise(clean + expand_sigma(sigma, clean) * noise, sigma) - clean
        return (expand_sigma(loss_weight(sigma, c.sigma_data), error) * error.square()).mean()

    def transitions(self, x: Tensor) -> Transitions:
        """Convert normalised windows ``[B, L, W]`` to rows, see :func:`~.trajectory_windows.window_transitions`."""
        return window_transitions(self.denormalise(x), self.obs_size)

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Self:
        """Make it of its folder's config."""
        config = from_plain(TrajectoryDiffusionConfig, stored["trajectory"], where="trajectory")
        return cls(config, stored["obs_size"], stored["action_size"])


@dataclass(frozen=True)
class TrajectoryReport:
    """Result of :func:`fit_trajectories`; ``validation_loss`` is that of held-out episodes, None without them."""

    windows: int
    validation_loss: float | None
    fit: FitReport


def fit_trajectories(
    name: str,
    rows: Transitions,
    episode: Tensor,
    config: TrajectoryDiffusionConfig,
    training: TrajectoryTraining,
    *,
    seed: int,
    folder: Path | None = None,
    log: MetricLog | None = None,
    device: torch.device | str = "cpu",
) -> tuple[TrajectoryDiffusion, TrajectoryReport]:
    """Train a trajectory model on rows in order, ``episode`` int64 ``[N]`` constant within one; average and report.

    ``name``: of the series in the log and of random streams. Without ``folder`` there are no checkpoints. Raises
    SettingError: no episode is long enough for a window; NonFiniteError: the loss is not finite.
    """
    train, held = split_windows(rows.to("cpu"), episode, config.length, training, seed, name)
    with initial_weights(seed, name, "weights"):
        model = TrajectoryDiffusion(config, rows.obs.shape[1], rows.action.shape[1])
    model.fit_statistics(train)
    model.to(device)
    ema = Ema(model, training.ema_decay)
    steps = training.steps_for(len(train))
    report = fit(
        name,
        modules={"model": model},
        optimizer=torch.optim.Adam(model.parameters(), lr=training.learning_rate, fused=True),
        loss=_windows_loss(model, train.to(device), training.batch_size, seed, name),
        steps=steps,
        folder=folder,
        every_checkpoint=training.checkpoint_steps,
        schedule=warmup_cosine(steps, int(training.warmup * steps)),
        log=log,
        every_log=max(1, steps // 1000),
        ema=ema,
    )
    averaged = TrajectoryDiffusion(config, model.obs_size, model.action_size).to(device)
    averaged.load_state_dict(ema.module.state_dict())
    validation = validation_loss(averaged.eval(), held.to(device), seed=seed, name=name)
    return averaged, TrajectoryReport(len(train), validation, report)


def _windows_loss(model: TrajectoryDiffusion, windows: Tensor, batch_size: int, seed: int, name: str) -> Loss:
    clean = model.normalise(windows)

    def loss(step: int) -> tuple[Tensor, Logs]:
        generator = on_device(stream(seed, name, step), model.device)
        index = torch.randint(len(clean), (batch_size,), generator=generator, device=generator.device)
        return model.loss(clean[index], generator=generator), {}

    return loss


def split_windows(
    rows: Transitions, episode: Tensor, length: int, training: TrajectoryTraining, seed: int, name: str
) -> tuple[Tensor, Tensor]:
    """Split windows ``[n, L, W]`` by episode: for training, and held out; SettingError: there is none."""
    starts = window_starts(rows, episode, length, training.stride)
    owners = episode[starts].unique()
    count = int(training.validation_share * len(owners))
    chosen = owners[torch.randperm(len(owners), generator=stream(seed, name, "validation"))[:count]]
    held = torch.isin(episode[starts], chosen)
    return stack_windows(rows, starts[~held], length), stack_windows(rows, starts[held], length)


@torch.no_grad()
def validation_loss(model: TrajectoryDiffusion, windows: Tensor, *, seed: int, name: str) -> float | None:
    """Return the loss on windows ``[n, L, W]`` at 16 drawn levels each; None without windows."""
    if not len(windows):
        return None
    generator = on_device(stream(seed, name, "validation loss"), model.device)
    clean = model.normalise(windows)
    parts = [model.loss(part, generator=generator) * len(part) for _ in range(16) for part in clean.split(1024)]
    return float(torch.stack(parts).sum() / (16 * len(clean)))
