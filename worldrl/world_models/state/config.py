"""Configuration of the state ensemble; it is stored with the weights as JSON. Importing it loads no torch."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeVar

from worldrl.core.errors import SettingError, nearest

Kind = TypeVar("Kind", bound=StrEnum)


class Variant(StrEnum):
    """Architecture of a member.

    ``plain``: SiLU layers, targets in their own units, one learnable pair of log-variance bounds for all members
    (PETS, MOPO, RAVL). ``layer_norm``: layer norm and leaky ReLU, targets in units of the data's deviations, log σ
    softly bounded in [-5, 0.25] (NEUBAY): long rollouts drift linearly and do not explode.
    """

    plain = "plain"
    layer_norm = "layer_norm"


class MemberChoice(StrEnum):
    """Which member predicts a row: another elite at each ``step`` (MBPO), or one for the whole ``rollout`` (NEUBAY)."""

    step = "step"
    rollout = "rollout"


class Uncertainty(StrEnum):
    """Measures of a step's uncertainty, see ``ensemble.measure``; all but ``none`` evaluate every member."""

    none = "none"
    max_sigma = "max_sigma"
    epistemic_mean = "epistemic_mean"
    disagreement = "disagreement"
    total_sigma = "total_sigma"
    sample_std = "sample_std"


@dataclass
class EnsembleConfig:
    """Sizes of the ensemble."""

    variant: Variant = Variant.plain  # architecture of a member.
    members: int = 7  # networks ``M``; up to 128 in NEUBAY.
    elites: int = 5  # members of lowest hold-out error, which predict the rollouts (NEUBAY: 100 of 128).
    width: int = 200  # of the hidden layers.
    depth: int = 4  # hidden layers.
    input_clip: float = 0.0  # largest standardised input, 0 for none (RAVL: 10).

    def __post_init__(self) -> None:
        self.variant = choice("variant", Variant, self.variant)
        for name in ("members", "elites", "width", "depth"):
            if getattr(self, name) < 1:
                raise SettingError(f"ensemble.{name} must be at least 1, got {getattr(self, name)}")
        if self.elites > self.members:
            raise SettingError(f"ensemble.elites must not exceed members {self.members}, got {self.elites}")
        if self.input_clip < 0:
            raise SettingError(f"ensemble.input_clip must be 0 (none) or above, got {self.input_clip}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"variant": str(self.variant)}


@dataclass
class EnsembleTraining:
    """How the ensemble learns; the defaults are those of MOPO and its descendants."""

    learning_rate: float = 1e-3  # of Adam.
    batch_size: int = 256  # rows per member and step.
    # one per hidden layer and one for the output, ½·wd·‖W‖² each, weights only. Empty means none; one value serves
    # every layer.
    weight_decay: tuple[float, ...] = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    decoupled: bool = False  # apply the decay as AdamW does, to every parameter (NEUBAY).
    bound_weight: float = 0.01  # of Σ(max - min) of the log-variance bounds; no effect in ``layer_norm``.
    # give each member its own draw of the rows with replacement; otherwise all rows in its own order.
    bootstrap: bool = True
    holdout_share: float = 0.2  # share of the rows that are held out ...
    holdout_most: int = 1000  # ... and how many at most.
    improvement: float = 0.01  # a member has improved when its hold-out error fell by more than this share.
    patience: int = 5  # epochs without any improvement after which training ends.
    # patience ends no training before this epoch (RAVL: 350); instead the learning rate falls to 0.3 of itself, once.
    min_epochs: int = 0
    # training always ends here (MOBILE: 30; NEUBAY: 600 to 2400); 0 for no limit. 100,000 rows of HalfCheetah take
    # about a hundred; after fifteen, an agent exploits the world's errors (docs/log/offline-grids.md).
    max_epochs: int = 100
    checkpoint_epochs: int = 1  # epochs between checkpoints.

    def __post_init__(self) -> None:
        self.weight_decay = tuple(self.weight_decay)
        for name in ("batch_size", "holdout_most", "patience", "checkpoint_epochs"):
            if getattr(self, name) < 1:
                raise SettingError(f"ensemble_training.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.holdout_share < 1:
            raise SettingError(f"ensemble_training.holdout_share must be in (0, 1), got {self.holdout_share}")
        if self.min_epochs < 0 or 0 < self.max_epochs < self.min_epochs:
            raise SettingError(
                f"ensemble_training.min_epochs must be between 0 and max_epochs={self.max_epochs}, got {self.min_epochs}"
            )
        if self.max_epochs < 0:
            raise SettingError(f"ensemble_training.max_epochs must be 0 (no limit) or above, got {self.max_epochs}")

    def decay_of_layers(self, layers: int) -> tuple[float, ...]:
        """Return one weight decay per layer; SettingError: neither zero, one nor ``layers`` values are set."""
        if len(self.weight_decay) not in (0, 1, layers):
            raise SettingError(
                f"ensemble_training.weight_decay: give one value per layer ({layers}: depth + 1), a single one, or "
                f"none; got {len(self.weight_decay)}"
            )
        given = self.weight_decay or (0.0,)
        return given if len(given) == layers else given * layers


def neubay_ensemble() -> tuple[EnsembleConfig, EnsembleTraining]:
    """Return NEUBAY's published sizes and training: 100 of 128 members with layer norm, plain permutations."""
    return (
        EnsembleConfig(variant=Variant.layer_norm, members=128, elites=100),
        EnsembleTraining(weight_decay=(5e-5,), decoupled=True, bootstrap=False, max_epochs=1200),
    )


def ravl_ensemble() -> EnsembleTraining:
    """Return RAVL's published training: at least 350 epochs, at most 2000, a fifth of the rows held out."""
    return EnsembleTraining(holdout_most=500_000, min_epochs=350, max_epochs=2000)


def choice(field: str, kind: type[Kind], value: str) -> Kind:
    """Return the member of ``kind`` that ``value`` names; SettingError with the nearest name otherwise."""
    if value not in {member.value for member in kind}:
        raise SettingError(f"unknown {field} {value!r}{nearest(str(value), [member.value for member in kind])}")
    return kind(value)
