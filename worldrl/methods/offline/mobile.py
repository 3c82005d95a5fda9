"""MOBILE (Sun et al. 2023): the penalty is the ensemble's disagreement about the Bellman target itself.

    u(s, a) = Std_i [ E_{s' ~ p_i(·|s, a)} min_j Q̄_j(s', a') ],   a' ~ π(·|s'),  i over the elites
    y = max(0, r − β u(s, a) 1[imagined] + γ (1 − terminated) min_j Q̄_j(s', a'))

The expectation is a mean over 10 samples; no entropy is backed up. The floor at 0 is OfflineRL-Kit's and fits rewards
that are not negative; ``floor=null`` removes it. A floor above all recorded returns is refused.

Shapes legend: ``B`` rows, the first ``real`` of them recorded, ``S`` observation, ``m`` elites, ``n`` samples.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Facts, require_rules
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.methods.offline.targets import bounded


@dataclass(frozen=True)
class MobileConfig(SacConfig):
    """Settings of :class:`Mobile`; β is 0.1 to 2 by D4RL set, k 5 or 1."""

    entropy_backup: bool = False
    inconsistency: float = 0.5  # weight β.
    samples: int = 10  # n, next observations per elite.
    floor: float | None = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rules(self, "agent", {"zero or more": "inconsistency", "at least 1": "samples"})


def sample_next(ensemble: Any, obs: Tensor, action: Tensor, samples: int, *, generator: torch.Generator) -> Tensor:
    """Draw ``samples`` next observations from every elite of an ensemble: ``[n, m, B, S]``."""
    mean, logvar = ensemble.predict(obs, action, ensemble.elites)  # [m, B, S + 1]
    noise = torch.randn((samples, *mean.shape), generator=generator, device=mean.device)
    return obs + (mean + (0.5 * logvar).exp() * noise)[..., :-1]


def bellman_inconsistency(next_value: Tensor) -> Tensor:
    """Std over elites (with Bessel's correction) of the mean over samples: ``[n, m, B]`` to ``[B]``."""
    return next_value.mean(dim=0).std(dim=0)


class Mobile(Sac):
    """SAC on imagined rollouts, with targets less the Bellman inconsistency; ``world`` is needed to learn only."""

    name: ClassVar[str] = "mobile"
    config_class: ClassVar[type[Any]] = MobileConfig
    imagining: ClassVar[Imagining] = Imagining(horizon=5, real_ratio=0.05)
    needs: ClassVar[tuple[str, ...]] = ("world",)

    def __init__(self, config: MobileConfig, facts: Facts, *, world: Any = None) -> None:
        self.check(config, facts)
        super().__init__(config, facts)
        self.world = world

    @classmethod
    def check(cls, config: MobileConfig, facts: Facts) -> None:
        """SettingError where the floor is above all recorded returns: every target would be the floor."""
        super().check(config, facts)
        if config.floor is not None and facts.return_max <= config.floor:
            raise SettingError(
                f"agent.floor={config.floor:g} lies above every recorded return (at most {facts.return_max:g}), so that each "
                "target would be the floor; give agent.floor=null"
            )

    def update(self, batch: Transitions, *, generator: torch.Generator, real: int | None = None) -> Logs:
        """Take one step; the first ``real`` rows are recorded (None: all) and not penalised. SettingError without a world."""
        if self.world is None:
            raise SettingError("mobile learns with an ensemble: make it with world=..., or choose world=ensemble")
        return super().update(batch, generator=generator, real=real)

    @torch.no_grad()
    def target(self, batch: Transitions, draws: torch.Generator) -> Tensor:
        """Return y ``[B]``."""
        y = super().target(batch, draws)
        if self.real < len(batch) and self.config.inconsistency:
            penalty = self.penalty(batch.obs[self.real :], batch.action[self.real :], draws)
            y[self.real :] -= self.config.inconsistency * penalty
        return bounded(y, self.config.floor, self.config.ceiling)

    @torch.no_grad()
    def penalty(self, obs: Tensor, action: Tensor, draws: torch.Generator) -> Tensor:
        """Return u(s, a) ``[B]``."""
        next_obs = sample_next(self.world.ensemble, obs, action, self.config.samples, generator=draws)
        flat = next_obs.flatten(0, 2)  # [n m B, S]
        next_action, _ = self.sample(flat, draws)
        value = self.target_critic(flat, next_action).min(dim=0).values
        return bellman_inconsistency(value.reshape(next_obs.shape[:3]))
