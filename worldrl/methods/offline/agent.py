"""Base of all offline agents: facts of the data, named modules and optimizers, and a state that is restored bit for bit.

Shapes legend of all offline methods: ``B`` rows, ``S`` observation, ``A`` action, ``N`` critics.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.optim import Optimizer

from worldrl.core.errors import ArtefactError, require_value
from worldrl.core.interfaces import Logs
from worldrl.core.rng import on_device
from worldrl.core.storage.artefact import Artefact, read_artefact, read_config, write_artefact
from worldrl.core.storage.typed import from_plain
from worldrl.core.storage.weights import fitting, load_weights
from worldrl.core.transitions import Transitions
from worldrl.rollout.agents.vector_agent import KIND

STD_FLOOR = 1e-3  # added to standard deviations (TD3+BC), so that a number that never changes stays finite
EPISODE_STEPS = 1000  # time limit of D4RL's locomotion tasks, for which IQL's reward scale was made


RULES: Mapping[str, Callable[[float], bool]] = {
    "at least 1": lambda value: value >= 1,
    "positive": lambda value: value > 0,
    "zero or more": lambda value: value >= 0,
    "in [0, 1]": lambda value: 0 <= value <= 1,
    "in (0, 1]": lambda value: 0 < value <= 1,
    "in (0, 1)": lambda value: 0 < value < 1,
}


def require_rules(settings: object, group: str, names_by_rule: Mapping[str, str]) -> None:
    """Check fields, separated by blanks, against their rule of ``RULES``; None passes; SettingError as :func:`require`."""
    for rule, names in names_by_rule.items():
        for name in names.split():
            value = getattr(settings, name)
            require_value(value is None or RULES[rule](value), f"{group}.{name}", rule, value)


@dataclass(frozen=True)
class Facts:
    """Statistics of the data, and the length of the training."""

    obs_mean: Tensor  # float32 ``[S]``.
    obs_std: Tensor  # float32 ``[S]``, positive.
    action_size: int
    return_min: float = 0.0  # smallest return of a recorded episode.
    return_max: float = float(EPISODE_STEPS)  # largest return of a recorded episode.
    updates: int = 1  # gradient steps planned, over which learning rates decay.
    episode_steps: int = EPISODE_STEPS  # steps after which an episode is cut.

    @property
    def obs_size(self) -> int:
        """Numbers ``S`` per observation."""
        return len(self.obs_mean)

    @property
    def reward_scale(self) -> float:
        """Episode steps over the range of recorded returns (IQL, Appendix B, where it is 1000); 1 if all are equal."""
        span = self.return_max - self.return_min
        return self.episode_steps / span if span > 0 else 1.0

    @classmethod
    def of(cls, data: Transitions, returns: ArrayLike, *, updates: int = 1, limit: int | None = None) -> Self:
        """Measure rows that lie episode after episode, and the episodes' returns ``[E]``; ``limit=None`` is the longest episode."""
        std = data.obs.std(dim=0, correction=0) + STD_FLOOR
        low, high = float(np.min(returns)), float(np.max(returns))
        steps = longest_episode(data) if limit is None else limit
        return cls(data.obs.mean(dim=0).cpu(), std.cpu(), data.action.shape[1], low, high, updates, steps)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = asdict(self)
        return plain | {"obs_mean": self.obs_mean.tolist(), "obs_std": self.obs_std.tolist()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Restore the values of :meth:`to_json`."""
        mean, std = (torch.tensor(plain[key], dtype=torch.float32) for key in ("obs_mean", "obs_std"))
        numbers = {key: value for key, value in plain.items() if key not in ("obs_mean", "obs_std")}
        return cls(mean, std, **numbers)


def longest_episode(data: Transitions) -> int:
    """Count the steps of the longest episode."""
    ends = (data.terminated | data.truncated).nonzero()[:, 0].cpu()
    borders = torch.cat([torch.tensor([-1]), ends, torch.tensor([len(data) - 1])])
    return int(borders.diff().max())


class Standardise(nn.Module):
    """Shift and scale observations by constants that are saved with the weights."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", std.clone())

    def forward(self, obs: Tensor) -> Tensor:
        """Return (obs − mean)/std, ``[B, S]``."""
        return (obs - self.mean) / self.std


def adam(parts: nn.Module | Iterable[nn.Parameter], learning_rate: float) -> Optimizer:
    """Make the optimizer of every agent: Adam as one kernel per tensor."""
    parameters = parts.parameters() if isinstance(parts, nn.Module) else parts
    return torch.optim.Adam(list(parameters), lr=learning_rate, fused=True)


def gradient_step(optimizer: Optimizer, loss: Tensor, clip_norm: float | None = None) -> None:
    """Descend a loss in the optimizer's own parameters; no gradient of other parameters is computed."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss, inputs=parameters)
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, clip_norm)
    optimizer.step()


@torch.no_grad()
def polyak(target: nn.Module, source: nn.Module, rate: float) -> None:
    """θ̄ ← (1 − τ) θ̄ + τ θ."""
    for average, parameter in zip(target.parameters(), source.parameters(), strict=True):
        average.lerp_(parameter, rate)


def cosine(step: int, steps: int) -> float:
    """Factor on a learning rate that falls from 1 to 0 over ``steps`` updates along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(step / max(steps, 1), 1.0)))


def pieces(batch: Transitions, parts: int) -> list[Transitions]:
    """Cut a batch into parts of neighbouring rows."""
    return [batch.select(index) for index in torch.arange(len(batch), device=batch.obs.device).tensor_split(parts)]


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Give every parameter of an optimizer this learning rate, in place where a graph reads it."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate


class Agent:
    """Named modules (targets included) and optimizers, and what all algorithms do with them.

    ``updates`` counts gradient steps; the first ``real`` rows of the present batch are recorded, the others imagined.
    """

    name: ClassVar[str]  # under which the registry knows the algorithm.
    config_class: ClassVar[type[Any]]  # type of ``config``.
    # default :class:`~worldrl.methods.offline.imagining.Imagining` of a model-based method, or None.
    imagining: ClassVar[Any] = None
    needs: ClassVar[tuple[str, ...]] = ()  # further arguments of the constructor: ``"world"``, ``"data"``.

    def __init__(
        self, config: Any, facts: Facts, modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]
    ) -> None:
        self.config, self.facts = config, facts
        self.modules, self.optimizers = dict(modules), dict(optimizers)
        self.updates, self.real = 0, 0

    @classmethod
    def check(cls, config: Any, facts: Facts) -> None:
        """Refuse settings that do not fit the data, before any training; here all do."""

    @property
    def imagines(self) -> bool:
        """Whether the next update learns from imagined rows."""
        return True

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(p.device for module in self.modules.values() for p in module.parameters())

    def draws(self, generator: torch.Generator) -> torch.Generator:
        """Return a generator that draws where the weights are."""
        return on_device(generator, self.device)

    def to(self, device: torch.device | str) -> Self:
        """Move the weights; call it before the first update, while the optimizers are empty."""
        for module in self.modules.values():
            module.to(device)
        return self

    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Choose actions float32 ``[B, A]`` in [-1, 1]; ``generator=None`` takes the most likely one."""
        raise TypeError(f"{type(self).__name__} has no act")

    def explore(self, obs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Choose actions ``[B, A]`` for the real environment; here a sample of the policy."""
        return self.act(obs, generator=generator)

    @property
    def phase(self) -> int:
        """Kind of the next update; updates of one kind run the same operations."""
        return 0

    def schedule(self) -> None:
        """Set the learning rates of the next update; here they are constant."""

    def take_step(self, batch: Transitions, draws: torch.Generator) -> Logs:
        """Take one gradient step of every part; ``draws`` is on the weights' device; return detached scalars."""
        raise TypeError(f"{type(self).__name__} has no update")

    def update(self, batch: Transitions, *, generator: torch.Generator, real: int | None = None) -> Logs:
        """Take one gradient step of every part; return detached scalars. The first ``real`` rows are recorded (None: all)."""
        self.real = len(batch) if real is None else real
        self.schedule()
        logs = self.take_step(batch, self.draws(generator))
        self.updates += 1
        return logs

    def update_parts(self, batch: Transitions, parts: int, *, generator: torch.Generator) -> Logs:
        """Take several critic steps, one on each part of the batch, and fewer policy steps; here whole updates."""
        logs: Logs = {}
        for part in pieces(batch, parts):
            logs |= self.update(part, generator=generator)
        return logs

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimizers and counters."""
        return {
            "modules": {name: dict(module.state_dict()) for name, module in self.modules.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict`` bit for bit; ArtefactError where its parts are not this agent's."""
        for what, own in (("modules", self.modules), ("optimizers", self.optimizers)):
            if set(state[what]) != set(own):
                raise ArtefactError(f"agent {self.name}: state has {what} {sorted(state[what])}, needs {sorted(own)}")
        for name, module in self.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.updates = int(state["updates"])

    def save(
        self, folder: Path, *, parents: Iterable[dict[str, str]] = (), space: Mapping[str, Any] | None = None
    ) -> str:
        """Write an artefact with every module, without the optimizers; return its hash.

        ``space``: ``trained_on``, ``low`` and ``high``, the suite and its action bounds; without it no suite can play
        it.
        """
        tensors = {
            f"{name}.{key}": value
            for name, module in self.modules.items()
            for key, value in module.state_dict().items()
        }
        config = {"algorithm": self.name, "config": asdict(self.config), "facts": self.facts.to_json()}
        config |= {} if space is None else {"space": dict(space)}
        return write_artefact(folder, kind=KIND, config=config, tensors=tensors, parents=list(parents))

    def load_modules(self, artefact: Artefact) -> None:
        """Load the modules of :meth:`save`; the optimizers start anew."""
        for name, module in self.modules.items():
            prefix = f"{name}."
            own = {k.removeprefix(prefix): v for k, v in artefact.tensors.items() if k.startswith(prefix)}
            load_weights(module, artefact, own)


def load_agent(folder: Path, agent_class: type[Agent], **parts: Any) -> Agent:
    """Open a saved agent; ``parts`` are the class's ``needs``. ArtefactError: missing, damaged, or another algorithm's."""
    artefact = read_artefact(folder, kind=KIND)
    if artefact.config["algorithm"] != agent_class.name:
        raise ArtefactError(f"{folder}: holds {artefact.config['algorithm']!r}, not {agent_class.name!r}")
    with fitting(artefact):
        config = from_plain(agent_class.config_class, artefact.config["config"], where="config")
        made: Any = agent_class
        agent: Agent = made(config, Facts.from_json(artefact.config["facts"]), **parts)
        agent.load_modules(artefact)
    return agent


def saved_algorithm(folder: Path) -> str:
    """Return the registered name of the saved agent's algorithm; ArtefactError without a saved agent."""
    return str(read_config(folder, kind=KIND)["algorithm"])
