"""COMBO (Yu et al. 2021): CQL that lowers the values of the batch's states, imagined ones included; no uncertainty.

    critic:  Σ_i mean_b (Q_i(s, a) − y)² + w Σ_i [ T mean_{s~ρ} log Σ_K exp((Q_i(s, a') − log q(a'))/T) − mean_{(s,a)~D} Q_i(s, a) ]

ρ is the whole mixed batch (``mix``) or its imagined rows (``model``); D are the recorded rows. K is the set of
:mod:`worldrl.methods.offline.cql`.

Shapes legend: ``B`` rows, the first ``real`` of them recorded.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from worldrl.core.errors import SettingError, require_value
from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.cql import Cql, CqlConfig
from worldrl.methods.offline.imagining import Imagining


@dataclass(frozen=True)
class ComboConfig(CqlConfig):
    """Settings of :class:`Combo`; w is 0.5 or 5 by dataset in OfflineRL-Kit, k 5 or 1."""

    conservatism: float = 0.5  # weight w.
    pushed_states: str = "mix"  # ρ: ``mix`` for the whole batch, ``model`` for its imagined rows.

    def __post_init__(self) -> None:
        super().__post_init__()
        require_value(self.pushed_states in ("mix", "model"), "agent.pushed_states", "mix or model", self.pushed_states)


def split_rows(batch: Transitions, real: int) -> tuple[Transitions, Transitions]:
    """Split a batch into its recorded and its imagined rows."""
    index = torch.arange(len(batch), device=batch.obs.device)
    return batch.select(index[:real]), batch.select(index[real:])


class Combo(Cql):
    """Conservative SAC on recorded and imagined rows."""

    name: ClassVar[str] = "combo"
    config_class: ClassVar[type[Any]] = ComboConfig
    imagining: ClassVar[Imagining] = Imagining(horizon=5, real_ratio=0.5)

    def update(self, batch: Transitions, *, generator: torch.Generator, real: int | None = None) -> Logs:
        """Take one step; the first ``real`` rows are recorded (None: all). SettingError: no recorded row."""
        if real is not None and not 0 < real <= len(batch):
            raise SettingError(f"combo lifts recorded rows: give imagining.real_ratio > 0, got {real} of {len(batch)}")
        return super().update(batch, generator=generator, real=real)

    def critic_loss(self, batch: Transitions, target: Tensor, draws: torch.Generator) -> tuple[Tensor, Logs]:
        """Return TD loss plus w times the conservative gap between ρ and the recorded rows."""
        loss, logs = super(Cql, self).critic_loss(batch, target, draws)
        recorded, imagined = split_rows(batch, self.real)
        pushed = batch if self.config.pushed_states == "mix" or not len(imagined) else imagined
        gap = self.gap(pushed, recorded, draws)
        return loss + self.config.conservatism * gap, logs | {"critic/gap": gap.detach()}
