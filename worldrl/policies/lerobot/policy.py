"""``LerobotPolicy``: a lerobot policy (ACT, Diffusion, SmolVLA, π0) with the interface of worldrl's own.

The network runs in a worker process in lerobot's Python environment, which may be this one. Noise is drawn here, from
each row's stream, so a row's chunk depends on no other row::

    core process: streams, losses, ──pipe: observations, noise, logp and its gradient──► worker: processors, network, AdamW
    clipping, checkpoints

For the core's training loops the policy is a module with one parameter, the anchor (``policies.lerobot.worker``).

Shapes legend: ``B`` rows, ``L`` executed steps of a chunk, ``H × D`` numbers of a sample, ``A`` numbers of an action.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError
from worldrl.core.rng import row_noise
from worldrl.core.storage.artefact import Shared
from worldrl.core.storage.atomic import atomic_folder
from worldrl.core.types import Chunk, CorrelatedNoise, Likelihood, PolicyObs
from worldrl.policies.exploration import refuse_displacement
from worldrl.policies.lerobot.folder import LerobotFolder, read_lerobot_folder
from worldrl.policies.lerobot.inputs import COMMAND, IMAGE, further, match_inputs, require_fit
from worldrl.policies.lerobot.worker import LerobotWorker, WorkerAdamW, lerobot_launch
from worldrl.simulators.process import Launch
from worldrl.workers.link.wire import Arrays


class LerobotPolicy(Shared, nn.Module):
    """A lerobot policy (:class:`worldrl.core.interfaces.TrainablePolicy`) of a complete folder, with its worker."""

    needs_noise = True  # even greedy chunks start from noise, so acting always takes generators
    device = torch.device("cpu")  # device of what crosses the pipe; the network's device is the worker's

    def __init__(self, folder: LerobotFolder, launch: Launch) -> None:
        super().__init__()
        self.folder, self.launch = folder, launch
        self.chunk_length, self.actions, self.n_obs_steps = folder.chunk_length, folder.actions, folder.n_obs_steps
        self.sources = match_inputs(folder)
        self.worker = LerobotWorker(launch)
        self.anchor = self.worker.anchor
        self._shape: tuple[int, int] = tuple(self.worker.facts["shape"])
        self._noisy = torch.tensor(self.worker.facts["noisy"])

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> "LerobotPolicy":
        """Read a folder in lerobot's published layout and start its worker.

        Raises ArtefactError: it is incomplete; WorkerEnvironmentError: there is no lerobot; WorkerError: it cannot
        serve.
        """
        return cls(read_lerobot_folder(folder), lerobot_launch(folder, str(device)))

    def close(self) -> None:
        """End the worker."""
        self.worker.close()

    @property
    def more(self) -> tuple[str, ...]:
        """Inputs besides image, command and instruction."""
        return further(self.sources)

    # --- acting ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(
        self,
        obs: PolicyObs,
        *,
        generators: Sequence[torch.Generator] | None,
        temperature: float = 1.0,
        correlated_noise: CorrelatedNoise | None = None,
    ) -> Chunk:
        """Choose a chunk for each row; ``token`` is the draw's trace, float32, an input of :meth:`log_prob`.

        ``generators``: one CPU stream per row, required; ``temperature``: factor on the stochastic step's noise
        scale; 0 leaves the policy's own deterministic sampler, started from noise; ``correlated_noise``: its constant
        part. Raises SettingError: no generators, a negative temperature, or an observation that does not fit.
        """
        rows = len(obs.instruction)
        if generators is None or len(generators) != rows:
            count = "none" if generators is None else len(generators)
            raise SettingError(
                f"generators: {self.folder.kind} starts from noise, one stream per row: {rows}, got {count}"
            )
        if not temperature >= 0:
            raise SettingError(f"temperature: must be 0 or more, got {temperature}")
        noise = row_noise(generators, (2, *self._shape))
        own = torch.stack([self._noisy[torch.randint(len(self._noisy), (), generator=g)] for g in generators])
        refuse_displacement(correlated_noise)
        fresh = noise[:, 1] if correlated_noise is None else self._correlated(noise[:, 1], correlated_noise)
        arrays = {**self._features(obs), "start": noise[:, 0].numpy(), "fresh": fresh.numpy(), "own": own.numpy()}
        _, found = self.worker.ask("act", arrays, instruction=list(obs.instruction), temperature=temperature)
        action, trace, logp = (torch.from_numpy(found[name]) for name in ("action", "trace", "logp"))
        decided = action[:, self.folder.executed]
        return Chunk(self._within(decided), trace, logp[:, self.folder.executed], decided)

    def log_prob(self, obs: PolicyObs, token: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Log-probability ``[B, L, A]`` of given traces, number by number; with gradient where gradients are on."""
        keep = torch.is_grad_enabled()
        arrays = {**self._features(obs), "trace": token.float().numpy()}
        _, found = self.worker.ask(
            "log_prob", arrays, instruction=list(obs.instruction), temperature=temperature, keep=keep
        )
        logp = torch.from_numpy(found["logp"])
        return self.worker.with_gradient(logp, keep)[:, self.folder.executed]

    def likelihood(self, obs: PolicyObs, token: Tensor, *, temperature: float = 1.0) -> Likelihood:
        """:meth:`log_prob`; the distribution of whole chunks has no closed form."""
        return Likelihood(self.log_prob(obs, token, temperature=temperature))

    def imitation_loss(self, obs: PolicyObs, action: Tensor, *, seed: int) -> Tensor:
        """The policy's own supervised loss of chunks ``[B, H, A]`` from the oldest observation's step on."""
        keep = torch.is_grad_enabled()
        arrays = {**self._features(obs), "action": action.numpy()}
        _, found = self.worker.ask("loss", arrays, instruction=list(obs.instruction), seed=seed, keep=keep)
        return self.worker.with_gradient(torch.from_numpy(found["loss"]), keep)

    def _within(self, action: Tensor) -> Tensor:
        low, high = (torch.from_numpy(bound) for bound in self.actions.bounds)
        return torch.maximum(torch.minimum(action, high), low)

    def _correlated(self, fresh: Tensor, correlated_noise: CorrelatedNoise) -> Tensor:
        steps, size = self.folder.executed, correlated_noise.value.shape[1]
        mixed = (
            correlated_noise.share**0.5 * correlated_noise.value[:, None]
            + (1 - correlated_noise.share) ** 0.5 * fresh[:, steps, :size]
        )
        fresh = fresh.clone()
        fresh[:, steps, :size] = mixed
        return fresh

    def _features(self, obs: PolicyObs) -> Arrays:
        if len(obs.past) != self.n_obs_steps - 1:
            raise SettingError(
                f"{self.folder.path}: needs {self.n_obs_steps} observations, one per control step (n_obs_steps), and is "
                f"shown {1 + len(obs.past)}"
            )
        steps = [self._shown(step) for step in (*obs.past, obs)]
        if not self.folder.windowed:
            return steps[0]
        return {name: np.stack([step[name] for step in steps], axis=1) for name in self.sources}

    def _shown(self, obs: PolicyObs) -> Arrays:
        shown = {IMAGE: obs.image, COMMAND: obs.command, **obs.more}
        shapes = {name: tuple(value.shape[1:]) for name, value in shown.items()}
        require_fit(self.folder, self.sources, shapes, obs.command.shape[1], "what it is shown")
        return {name: np.ascontiguousarray(shown[source].cpu().numpy()) for name, source in self.sources.items()}

    # --- learning --------------------------------------------------------------------------------------------------

    def make_optimizer(self, learning_rate: float, weight_decay: float) -> WorkerAdamW:
        """The optimiser of the network, in the worker."""
        return WorkerAdamW(self.worker, learning_rate, weight_decay)

    # --- state -----------------------------------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The network's trained weights, from the worker."""
        return self.worker.read("weights")

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Restore :meth:`state_dict`'s value."""
        self.worker.write("weights", state_dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LerobotPolicy":
        twin = LerobotPolicy(self.folder, self.launch)
        twin.load_state_dict(self.state_dict())
        return twin

    def save(self, folder: Path, *, parents: Sequence[Mapping[str, str]] = ()) -> None:
        """Write lerobot's published layout, which has no place for ``parents``."""
        with atomic_folder(folder) as temp:
            self.worker.ask("save", folder=str(temp.resolve()))
