"""COPlanner's world in the online phase: refitted to explored rows, and imagined in (MBPO's loop).

Every ``refit_every`` steps the ensemble trains further on all real rows, recorded and online; then a generation of
rollouts begins at any of them. A batch holds ⌊B r⌋ online rows, imagined ones for the rest.
"""

from collections.abc import Callable
from typing import Any

import torch

from worldrl.core.interfaces import Imagination, Logs
from worldrl.core.transitions import Transitions, concat
from worldrl.methods.offline.buffer import TransitionBuffer
from worldrl.methods.offline.imagining import Imagining
from worldrl.world_models.state.config import EnsembleTraining
from worldrl.world_models.state.ensemble_training import refit_ensemble
from worldrl.world_models.state.ensemble_world import EnsembleWorld


class OnlineWorld:
    """An ensemble that keeps learning (in place), and the buffer of rollouts in it.

    ``recorded``: rows of its offline training; ``refit_every``: environment steps; ``rollouts``: makes the
    imagination of a world with so many start rows.
    """

    def __init__(
        self,
        world: EnsembleWorld,
        recorded: Transitions,
        imagining: Imagining,
        training: EnsembleTraining,
        *,
        refit_every: int,
        seed: int,
        rollouts: Callable[[EnsembleWorld, int], Imagination],
    ) -> None:
        self.world, self.recorded, self.imagining, self.training = world, recorded, imagining, training
        self.refit_every, self.seed, self.rollouts = refit_every, seed, rollouts
        self.buffer = TransitionBuffer(imagining.capacity, recorded.obs.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the ensemble and the imagined rows."""
        return {"ensemble": dict(self.world.ensemble.state_dict()), "buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.world.ensemble.load_state_dict(state["ensemble"])
        self.buffer.load_state_dict(state["buffer"])

    def refresh(self, step: int, met: TransitionBuffer, agent: Any, generator: torch.Generator) -> Logs:
        """Refit and imagine where due, ``step`` steps after the warm-up; return logs."""
        if step % self.refit_every:
            return {}
        rows = concat([self.recorded, met.rows().to(self.recorded.obs.device)])
        report = refit_ensemble(f"refit-{step}", self.world.ensemble, rows, self.training, seed=self.seed)
        world = EnsembleWorld(self.world.ensemble, rows.obs, self.world.termination, self.world.config)
        imagined, logs = self.rollouts(world, len(rows)).generate(agent, generator=generator)
        self.buffer.add(imagined)
        return logs | {"world/refit_error": torch.tensor(min(report.holdout_error))}

    def batch(self, met: TransitionBuffer, rows: int, generator: torch.Generator) -> Transitions:
        """Draw ``rows`` rows: online ones first, then imagined ones."""
        real = self.imagining.real_rows(rows)
        parts = [met.sample(real, generator=generator).to(self.buffer.device)] if real else []
        parts += [self.buffer.sample(rows - real, generator=generator)] if rows > real else []
        return concat(parts)
