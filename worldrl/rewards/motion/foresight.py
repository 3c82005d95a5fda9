"""MIND-V's physical-foresight reward (arXiv 2512.06628), with a feature predictor trained here.

For window i with context c_i and target y_i::

    s_i = cos(P(E(c_i)), E(y_i)),     R = Σ_i softmax_i((1 - s_i) / τ) s_i

The worst windows weigh most. E is a frozen encoder: an inverse dynamics' or a world model's codec (V-JEPA 2 in the
paper). P, a small residual network, predicts the features ``ahead`` frames after ``context`` ones, standardised by
real videos; otherwise the cosine of any two images of one scene would be near 1. τ is not published; 0.1 here.

A still video is easy to predict, so R alone rewards stillness. The second reward multiplies by motion::

    m = mean_t |x_{t+ahead} - x_t| / sqrt(F),     M = clip((m - tremble) / (pace - tremble), 0, 1),     R' = (1 + R)/2 M

x are the standardised features and ``pace`` is 0.9 of the median real video's m. ``tremble`` is the m of real first
frames that are repeated and decoded as the scored videos are. R' is in [0, 1]; a still video earns 0.

Shapes legend: ``N`` videos, ``T`` frames, ``F`` features, ``W`` windows, ``K`` context frames.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.typed import from_plain
from worldrl.core.training.fit import FitReport, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.core.types import ImaginedVideos
from worldrl.nn.blocks import Mlp
from worldrl.nn.stored import StoredModule
from worldrl.rewards.motion.basis import REAL_SHARE, check_frame_time, check_terms
from worldrl.rewards.motion.inverse_dynamics import IDM_FOLDER, InverseDynamics

TEMPERATURE = 0.1
PHYSICAL, MOVING = "physical_foresight", "moving_foresight"  # MIND-V's R, and R', which is 0 for a still video
PREDICTOR = "foresight"  # folder of P in a run directory of ``worldrl train-idm``, beside E


@dataclass
class ForesightConfig:
    """The feature predictor and its training."""

    context: int = 4  # frames that it reads.
    ahead: int = 4  # frames from the last of them to the predicted one.
    hidden: int = 256  # width of its hidden layer.
    steps: int = 0  # training steps; 0 trains none.
    batch: int = 128  # windows per step.
    learning_rate: float = 1e-3  # peak, warm-up cosine.
    weight_decay: float = 0.01  # AdamW.

    def __post_init__(self) -> None:
        require_at_least_one(self, ("context", "ahead", "hidden", "batch"), of="foresight")
        if self.steps < 0:
            raise SettingError(f"foresight.steps must be 0 or more, got {self.steps}")


def physical_foresight(similarity: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """R = Σ_i softmax_i((1 - s_i)/τ) s_i of similarities ``[N, W]``, ``[N]``."""
    return (((1 - similarity) / temperature).softmax(dim=1) * similarity).sum(dim=1)


class FeaturePredictor(StoredModule):
    """P: standardised features of ``K`` frames to those of a later one; untrained it copies the last of the ``K``."""

    kind = "feature-predictor"

    def __init__(self, config: ForesightConfig, width: int):
        super().__init__()
        self.config, self.width = config, width
        self.sizes = {"sizes": asdict(config), "width": width}
        self.net = Mlp(config.context * width, config.hidden, width)
        nn.init.zeros_(self.net[2].weight)  # pyright: ignore[reportArgumentType]
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))
        self.register_buffer("pace", torch.ones(()))
        self.register_buffer("tremble", torch.zeros(()))

    @property
    def span(self) -> int:
        """Frames of a window: the context, and up to the predicted one."""
        return self.config.context + self.config.ahead

    def standardised(self, features: Tensor) -> Tensor:
        """Standardise ``[..., F]``."""
        return (features - self.get_buffer("mean")) / self.get_buffer("deviation")

    def forward(self, context: Tensor) -> Tensor:
        """Map standardised ``[B, K, F]`` to ``[B, F]``."""
        return context[:, -1] + self.net(context.flatten(1))

    def similarity(self, features: Tensor) -> Tensor:
        """s_i of features ``[N, T, F]``: ``[N, T - span + 1]``; SettingError: videos shorter than a window."""
        if features.shape[1] < self.span:
            raise SettingError(f"foresight needs {self.span} frames, got {features.shape[1]}; give longer videos")
        window = self.standardised(features).unfold(1, self.span, 1).movedim(-1, 2)  # [N, W, span, F]
        foreseen = self(window[:, :, : self.config.context].flatten(0, 1)).unflatten(0, window.shape[:2])
        return F.cosine_similarity(foreseen, window[:, :, -1], dim=-1)

    @torch.no_grad()
    def reward(self, features: Tensor, temperature: float = TEMPERATURE) -> Tensor:
        """MIND-V's R of videos' features ``[N, T, F]``, ``[N]`` in [-1, 1]."""
        return physical_foresight(self.similarity(features), temperature)

    def motion_content(self, features: Tensor) -> Tensor:
        """Motion content m of videos' features ``[N, T, F]``, ``[N]``."""
        path = self.standardised(features)
        return (path[:, self.config.ahead :] - path[:, : -self.config.ahead]).square().mean(dim=-1).sqrt().mean(dim=1)

    @torch.no_grad()
    def moving_reward(self, features: Tensor, temperature: float = TEMPERATURE) -> Tensor:
        """R' of videos' features ``[N, T, F]``, ``[N]`` in [0, 1]."""
        tremble, pace = self.get_buffer("tremble"), self.get_buffer("pace")
        moving = ((self.motion_content(features) - tremble) / (pace - tremble)).clamp(0, 1)
        return (1 + self.reward(features, temperature)) / 2 * moving

    @torch.no_grad()
    def measure_pace(self, real: Tensor, still: Tensor) -> None:
        """Set ``pace`` and ``tremble`` from features ``[N, T, F]`` of held-out videos and their repeated first frames.

        Raises SettingError: the real ones move no more than the still ones.
        """
        pace = REAL_SHARE * self.motion_content(real).median()
        tremble = self.motion_content(still).median()
        if not pace > tremble:
            raise SettingError(
                f"foresight: real videos move by {pace:.3g} deviations of a feature and still ones by {tremble:.3g}, so motion cannot be "
                "separated from the codec's noise; lower latent_noise, or raise foresight.ahead"
            )
        self.get_buffer("pace").copy_(pace)
        self.get_buffer("tremble").copy_(tremble)

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Self:
        """Make it of its folder's config."""
        return cls(from_plain(ForesightConfig, stored["sizes"], where="sizes"), stored["width"])


def fit_foresight(
    config: ForesightConfig, features: Sequence[Tensor], *, seed: int, folder: Path | None, log: MetricLog | None
) -> tuple[FeaturePredictor, FitReport]:
    """Train on features ``[T_i, F]`` of real videos as long as a window; SettingError: there is none."""
    with initial_weights(seed, "foresight"):
        predictor = FeaturePredictor(config, features[0].shape[-1]).to(features[0].device)
    long = [video for video in features if len(video) >= predictor.span]
    if not long:
        raise SettingError(
            f"foresight: no video has {predictor.span} frames; lower foresight.context or foresight.ahead"
        )
    features_seen = torch.cat(long)
    predictor.get_buffer("mean").copy_(features_seen.mean(dim=0))
    predictor.get_buffer("deviation").copy_(features_seen.std(dim=0).clamp_min(1e-3))
    windows = torch.cat([predictor.standardised(video).unfold(0, predictor.span, 1).movedim(-1, 1) for video in long])

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        rows = torch.randint(len(windows), (config.batch,), generator=stream(seed, "foresight", step))
        window = windows[rows.to(windows.device)]
        similarity = F.cosine_similarity(predictor(window[:, : config.context]), window[:, -1], dim=-1)
        return 1 - similarity.mean(), {"foresight/similarity": similarity.mean().detach()}

    report = fit_module(
        "foresight",
        predictor,
        loss,
        part="predictor",
        optimizer=adamw(predictor, config.learning_rate, config.weight_decay),
        steps=config.steps,
        warmup=50,
        folder=folder,
        log=log,
    )
    return predictor, report


# --- as a reward of imagined videos ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForesightReward:
    """R' and R as a :class:`~worldrl.core.interfaces.VideoReward`; ``predictor`` reads ``encoder``'s features."""

    encoder: InverseDynamics
    predictor: FeaturePredictor
    names: tuple[str, ...] = (MOVING,)

    @torch.no_grad()
    def score(self, videos: ImaginedVideos) -> Tensor:
        """Terms ``[N, K]`` of each video; SettingError: shorter than a window, or another frame time."""
        check_frame_time(self.encoder.basis, videos.frame_s)
        features = self.encoder.encode(videos.frames)
        terms = {MOVING: self.predictor.moving_reward, PHYSICAL: self.predictor.reward}
        return torch.stack([terms[name](features).float().cpu() for name in self.names], dim=1)


def foresight_reward(folder: str, terms: Sequence[str], device: torch.device) -> ForesightReward:
    """Make the reward ``foresight``; no terms select ``moving_foresight``.

    Equation: R = Σ_i softmax_i((1 - s_i) / 0.1) s_i, s_i the cosine of foreseen and true features, times motion
    Paper: MIND-V (2512.06628)

    Raises ArtefactError: no inverse dynamics or no predictor; SettingError: no folder is given, or an unknown term.
    """
    if not folder:
        raise SettingError(
            "folders.foresight: this reward needs the run directory of worldrl train-idm foresight.steps=1000"
        )
    check_terms(terms, (MOVING, PHYSICAL))
    encoder = InverseDynamics.load(Path(folder) / IDM_FOLDER, device)
    return ForesightReward(encoder, FeaturePredictor.load(Path(folder) / PREDICTOR, device), tuple(terms) or (MOVING,))
