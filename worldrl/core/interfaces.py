"""The Protocols that hold the rooms together; generators are keyword-only, one per row where rows are independent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worldrl.core.actions import ActionSpec
from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.transitions import Outcome, Transitions
from worldrl.core.types import Chunk, CorrelatedNoise, Imagined, ImaginedVideos, Likelihood, PolicyObs, ResetRecord

Logs = dict[str, Tensor]  # Detached scalars, named `room/quantity`; they become floats only in the logger


@runtime_checkable
class Policy(Protocol):
    """A chunked, language-conditioned image policy with exact log-probabilities."""

    chunk_length: int  # control steps `L` that it decides at once
    actions: ActionSpec  # what the `A` numbers of an action are
    # Whether even its greedy chunks start from noise: acting then takes generators, and temperature 0 is greedy.
    needs_noise: bool
    n_obs_steps: int  # newest observations that a decision reads, one per control step (`PolicyObs.past`)

    @property
    def more(self) -> Sequence[str]:
        """What it observes besides image, command and instruction: keys of ``PolicyObs.more``."""
        ...

    def act(
        self,
        obs: PolicyObs,
        *,
        generators: Sequence[torch.Generator] | None,
        temperature: float = 1.0,
        correlated_noise: CorrelatedNoise | None = None,
    ) -> Chunk:
        """Choose a chunk for each row; ``generators=None`` means greedy, ``correlated_noise`` is what lasts of the exploration."""
        ...

    def log_prob(self, obs: PolicyObs, token: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Log-probability ``[B, L, A]`` of given tokens, with gradient; equals ``act``'s at the same temperature."""
        ...

    def save(self, folder: Path, *, parents: Sequence[Mapping[str, str]] = ()) -> None:
        """Write ``config.json``, ``model.safetensors``, and what else belongs to a folder of its kind."""


class Stateful(Protocol):
    """Anything that a checkpoint can hold; every ``nn.Module`` is."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors by name, and numbers."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Restore what ``state_dict`` gave, bit for bit."""
        ...


@runtime_checkable
class TrainablePolicy(Policy, Stateful, Protocol):
    """A policy that gradients improve, wherever its weights are.

    :meth:`likelihood` gives a distribution of token policies, of flow, diffusion and regression policies only a
    density.
    """

    @property
    def device(self) -> torch.device:
        """Where tokens and log-probabilities are; observations are moved by the policy."""
        ...

    def likelihood(self, obs: PolicyObs, token: Tensor, *, temperature: float = 1.0) -> Likelihood:
        """Log-probabilities of given tokens as ``log_prob`` gives them, and the distribution behind them where there is one."""
        ...

    def make_optimizer(self, learning_rate: float, weight_decay: float) -> Optimizer:
        """Make the AdamW that moves this policy's weights."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """What a backward pass leaves gradients in, for clipping by their norm."""
        ...

    def train(self, mode: bool = True) -> Self:
        """Go into training mode."""
        ...

    def eval(self) -> Self:
        """Go into evaluation mode."""
        ...


class WorldState(Protocol):
    """The rows of a world model between chunks; opaque to everyone but the world model."""

    @property
    def rows(self) -> int:
        """How many rollouts the state holds."""
        ...

    def select(self, index: Tensor) -> "WorldState":
        """Keep the rows of ``index`` (int64), in that order."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors and lists that restore the state exactly."""
        ...


class WorldModel(Protocol):
    """One surface for latent video diffusion, state ensembles and trajectory diffusion; states are opaque."""

    embodiment: AnyEmbodiment  # the robot: what its actions are, and how they move its command

    @property
    def more(self) -> Sequence[str]:
        """What it imagines besides image, command and success: further images, then ``state`` (``core.observation``)."""
        ...

    @property
    def chunk_length(self) -> int:
        """Control steps ``L`` per chunk."""
        ...

    @property
    def memory_frames(self) -> int:
        """Newest frames ``K`` the model remembers."""
        ...

    @property
    def frame_stride(self) -> int:
        """Control steps per predicted frame."""
        ...

    def start(self, records: Sequence[ResetRecord]) -> WorldState:
        """Begin one rollout per record."""
        ...

    def imagine(
        self, state: Any, action: Tensor, *, generators: Sequence[torch.Generator]
    ) -> tuple[WorldState, Imagined]:
        """Predict one chunk: ``action`` is float32 ``[B, L, A]``; one generator per row."""
        ...

    def restore(self, data: dict[str, Any]) -> WorldState:
        """Rebuild a state from ``WorldState.state_dict``."""
        ...

    def decode_newest(self, state: Any, count: int) -> Tensor:
        """Decode the newest ``count`` of the ``K`` frames, uint8 ``[B, count, V Y, X, 3]``, of ``V`` cameras."""
        ...


class StateWorld(Protocol):
    """A world that an agent of vectors steps through, thousands of rows at once; callers only hand states back.

    One generator serves all rows here, unlike :class:`WorldModel`: rows are exchangeable samples, not episodes.
    """

    @property
    def obs_size(self) -> int:
        """Numbers ``S`` per observation."""
        ...

    @property
    def action_size(self) -> int:
        """Numbers ``A`` per action, each in [-1, 1]."""
        ...

    def start(self, index: Tensor, *, generator: torch.Generator) -> tuple[Any, Tensor]:
        """Begin at rows int64 ``[B]`` of the world's dataset; return the state and observations float32 ``[B, S]``."""
        ...

    def step(self, state: Any, action: Tensor, *, generator: torch.Generator) -> tuple[Any, Outcome]:
        """Take ``action`` float32 ``[B, A]`` in every row."""
        ...

    def select(self, state: Any, index: Tensor) -> Any:
        """Keep the rows of ``index`` (int64), in that order."""
        ...


class OfflineAgent(Protocol):
    """An actor-critic (or clone) over vectors. Everything it learns and remembers is in its ``state_dict``."""

    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Choose actions float32 ``[B, A]`` in [-1, 1]; ``generator=None`` takes the most likely one."""
        ...

    def update(self, batch: Transitions, *, generator: torch.Generator, real: int | None = None) -> Logs:
        """Take one gradient step of every part; the first ``real`` rows are recorded (None: all), the others imagined."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimizers and counters, as nested dictionaries of tensors and numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave, bit for bit."""


@runtime_checkable
class ActionDensity(Protocol):
    """An agent that knows how likely its actions are: what policy-guided diffusion asks of one."""

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-density ``[B]`` of actions under the agent's policy, differentiable in both arguments."""
        ...


class Imagination(Protocol):
    """A source of imagined experience for the agent as it is now."""

    def generate(self, agent: Any, *, generator: torch.Generator) -> tuple[Transitions, Logs]:
        """Imagine one generation of transitions with the agent's present policy, and what to log of them."""
        ...


class VideoReward(Protocol):
    """What imagined videos are worth, term by term."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the ``K`` terms."""
        ...

    def score(self, videos: ImaginedVideos) -> Tensor:
        """Return every term of every video, short ones too, finite float32 ``[N, K]``; more is better."""
        ...


RewardMix = Callable[[Tensor, Tensor], Tensor]
"""Maps terms ``[N, K]`` and group ids int64 ``[N]`` to one number per video ``[N]``, comparable within a group."""
