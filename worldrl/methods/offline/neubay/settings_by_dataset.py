"""The settings that NEUBAY tunes per dataset: the encoders' learning rate, κ and, for Hopper, a fixed α.

Adroit and AntMaze differ in other settings too: three head layers, ``clip_norm`` 1e4 and half the batch; and
``entropy_per_action`` 10, ``clip_norm`` 1 and half as many updates again.
"""

from dataclasses import dataclass, replace

from worldrl.core.errors import SettingError, nearest
from worldrl.methods.offline.neubay.neubay import NeubayConfig


@dataclass(frozen=True)
class Tuned:
    """The tuned fields of :class:`~worldrl.methods.offline.neubay.neubay.NeubayConfig`."""

    encoder_rate: float
    kappa: float
    temperature: float | None = None


HOPPER = 0.2  # the fixed α of the Hopper sets
DATASETS: dict[str, Tuned] = {
    "halfcheetah-random": Tuned(3e-5, 0.8),
    "halfcheetah-medium": Tuned(3e-5, 0.8),
    "halfcheetah-medium-replay": Tuned(1e-5, 0.05),
    "halfcheetah-medium-expert": Tuned(3e-5, 0.8),
    "hopper-random": Tuned(1e-5, 0.5, HOPPER),
    "hopper-medium": Tuned(1e-6, 0.8, HOPPER),
    "hopper-medium-replay": Tuned(3e-7, 0.5, HOPPER),
    "hopper-medium-expert": Tuned(3e-6, 0.5, HOPPER),
    "walker2d-random": Tuned(3e-5, 0.5),
    "walker2d-medium": Tuned(3e-6, 0.5),
    "walker2d-medium-replay": Tuned(1e-6, 0.5),
    "walker2d-medium-expert": Tuned(1e-6, 0.8),
    "neorl-halfcheetah-low": Tuned(1e-5, 0.8),
    "neorl-halfcheetah-medium": Tuned(3e-5, 0.5),
    "neorl-halfcheetah-high": Tuned(3e-5, 0.5),
    "neorl-hopper-low": Tuned(3e-6, 0.8, HOPPER),
    "neorl-hopper-medium": Tuned(3e-6, 0.5, HOPPER),
    "neorl-hopper-high": Tuned(3e-6, 0.5, HOPPER),
    "neorl-walker2d-low": Tuned(3e-7, 0.5),
    "neorl-walker2d-medium": Tuned(3e-7, 0.8),
    "neorl-walker2d-high": Tuned(3e-7, 0.8),
    "pen-human": Tuned(3e-5, 0.5),
    "pen-cloned": Tuned(1e-5, 0.8),
    "hammer-cloned": Tuned(1e-5, 0.5),
    "antmaze-umaze": Tuned(3e-6, 0.95),
    "antmaze-umaze-diverse": Tuned(3e-6, 0.95),
    "antmaze-medium-play": Tuned(1e-5, 0.95),
    "antmaze-medium-diverse": Tuned(1e-6, 0.95),
}


def tuned_for(dataset: str, config: NeubayConfig | None = None) -> NeubayConfig:
    """Return a configuration with the paper's values of one of ``DATASETS``; SettingError: another name."""
    if dataset not in DATASETS:
        raise SettingError(f"dataset: the paper has no settings for {dataset!r}{nearest(dataset, DATASETS)}")
    found = DATASETS[dataset]
    return replace(
        config or NeubayConfig(), encoder_rate=found.encoder_rate, kappa=found.kappa, temperature=found.temperature
    )
