"""The ten interfaces of which every method of RL in imagination is made: of policies and of video models alike.

One iteration of :class:`~worldrl.methods.rl.method.Method`::

    StartSampler ─ BudgetAllocator ─► Request ─ RolloutScheduler ─► experience ─ RewardTransform ─► terms [B, K]
    terms ─ RewardMix ─► value [B] ─ AdvantageEstimator ─► advantage [T, B] ─ SampleSelector ─► weight [T, B]
    kept decisions ─ LogProb ─► Evaluated ─ PolicyLoss ─► gradient step, scaled by the UpdateController

Implementations are chosen by name (``worldrl.registry``); other packages add theirs by entry points
(``worldrl.<kind>``). A part says what it needs by a decorator, ``@needs(MATES)``; parts that say nothing fit everywhere. A
command that lacks it refuses the part before it starts (``worldrl.recipes.rl_parts``).

Shapes legend: ``B`` rollouts or videos, ``N`` groups (one start each, of any size), ``T`` decisions of a rollout in
time (a policy's chunks, a video's denoising steps), ``K`` reward terms, ``M`` kept decisions, ``S`` start records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.methods.rl.records import StartRecords

E = TypeVar("E")
P = TypeVar("P", bound=Callable[..., Any])
T = TypeVar("T")
E_contra = TypeVar("E_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)


# --- what passes between them ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What an iteration asks imagination for."""

    iteration: int  # which one.
    starts: Tensor  # int64 ``[N]``, the id of each group's start record.
    group: Tensor  # int64 ``[B]``.
    # int64 ``[B]``, the number of each row within its group: with iteration and group it names the row's noise.
    mate: Tensor
    begun: Tensor | None = None  # int64 ``[N]``, iteration in which each group began; None: all in this one.

    @classmethod
    def make(cls, iteration: int, starts: Tensor, sizes: Tensor, begun: Tensor | None = None) -> "Request":
        """Ask for ``sizes`` ``[N]`` rows from each start."""
        group = torch.arange(len(starts)).repeat_interleave(sizes)
        first = sizes.cumsum(0) - sizes
        return cls(iteration, starts, group, torch.arange(len(group)) - first[group], begun)

    def select(self, index: Tensor) -> "Request":
        """Ask for the rows of ``index`` alone."""
        return replace(self, group=self.group[index], mate=self.mate[index])

    @property
    def keys(self) -> list[tuple[str | int, ...]]:
        """Name each row: iteration, group, number."""
        return [(self.iteration, g, m) for g, m in zip(self.group.tolist(), self.mate.tolist(), strict=True)]


class Node(Protocol):
    """One decision time of a tree: ``R`` rows, some of which share what came before.

    Attributes:
        parent: int64 ``[R]``, the row of the time before.
        group: int64 ``[R]``.
        logp: ``[R]``.
    """

    @property
    def parent(self) -> Tensor: ...  # noqa: D102
    @property
    def group(self) -> Tensor: ...  # noqa: D102
    @property
    def logp(self) -> Tensor: ...  # noqa: D102


@dataclass(frozen=True)
class Trace:
    """What estimators and selectors see of ``B`` rollouts."""

    iteration: int  # which one.
    group: Tensor  # int64 ``[B]``.
    valid: Tensor  # bool ``[T, B]``, the decisions that may be learned from.
    wins: Tensor | None = None  # bool ``[B]``, where a rollout succeeds or fails; None where there is no such thing.
    # nodes by time where rollouts share their beginnings, the last ones are the rollouts; None where none do.
    tree: Sequence[Node] | None = None
    # values ``[W]`` and groups ``[W]`` of more rollouts that statistics are taken from; None: from these.
    explored: tuple[Tensor, Tensor] | None = None
    # success probability after each decision, float32 ``[T, B]``, that of the last one from there on; None: not known.
    probability: Tensor | None = None
    # mean -log π of each decision's tokens when it was drawn, float32 ``[T, B]``; None: not known.
    surprise: Tensor | None = None
    # rate of success ``[B]`` that the record of each rollout's start predicted; None where there is none.
    predicted: Tensor | None = None
    # gives the images before each decision and after the last one, uint8 ``[T + 1, B, Y, X, 3]``; None: not kept.
    images: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class Collected(Generic[E]):
    """What imagination brings in."""

    experience: E  # of ``B`` rollouts, in the imagination's own form.
    terms: Tensor  # ``[B, K]``.
    # terms ``[W, K]`` and groups ``[W]`` of the rollouts that were tried besides, for statistics; None: none count.
    explored: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Evaluated:
    """Kept decisions under the weights of this moment."""

    now: Tensor  # with gradient ``[M, ...]``: log-probabilities, or what a loss without them compares (predictions).
    before: Tensor  # the same under the acting weights.
    advantage: Tensor  # ``[M]``, or shaped like ``now``.
    weight: Tensor  # ``[M]``, of mean 1 over the iteration.
    # computes the KL divergence to the starting weights, with gradient; None where it has no weight.
    away: Callable[[], Tensor] | None = None
    target: Tensor | None = None  # what predictions are compared with ``[M, ...]``; None for log-probabilities.
    # bool ``[M]``, which decisions are demonstrations, of advantage 1; None: there are none.
    external: Tensor | None = None
    # log-probabilities under the proximal policy, without gradient; None: there is none.
    proximal: Tensor | None = None
    # computes the KL divergence to the starting weights of decisions that are not learned from; None: nothing holds them.
    anchor: Callable[[], Tensor] | None = None


class Decisions(Protocol):
    """Kept decisions of an iteration, in the imagination's own form."""

    def __len__(self) -> int:
        """Return ``M``."""
        ...

    def select(self, index: Tensor) -> Self:
        """Take the decisions of ``index`` (int64)."""
        ...


# --- the ten -----------------------------------------------------------------------------------------------------------


class RewardTransform(Protocol[E_contra]):
    """1. What rollouts or videos are worth, term by term (``worldrl.video_rewards``)."""

    def score(self, experience: E_contra, /) -> Tensor:
        """Return every term of every row, finite float32 ``[B, K]``; more is better."""
        ...


class RewardMix(Protocol):
    """2. Several terms become one number (``worldrl.reward_mixes``)."""

    def __call__(self, terms: Tensor, group: Tensor, /) -> Tensor:
        """Map terms ``[B, K]`` to values ``[B]``, comparable in a group; registered ones also take ``weights``."""
        ...


class AdvantageEstimator(Protocol):
    """3. How much better than its mates each decision turned out (``worldrl.advantage_estimators``)."""

    def __call__(self, value: Tensor, trace: Trace, /) -> Tensor:
        """Map values ``[B]`` to advantages ``[T, B]``; 0 where nothing is to be learned."""
        ...


class SampleSelector(Protocol):
    """4. Which decisions are learned from, before any backward pass (``worldrl.sample_selectors``)."""

    def __call__(self, advantage: Tensor, value: Tensor, trace: Trace, generator: torch.Generator, /) -> Tensor:
        """Map advantages ``[T, B]`` and values ``[B]`` to weights of at least 0 ``[T, B]``; 0 leaves a decision out."""
        ...


class StartSampler(Protocol):
    """5. Where rollouts begin (``worldrl.start_samplers``)."""

    def __call__(self, records: StartRecords, count: int, generator: torch.Generator, /) -> Tensor:
        """Draw the ids of ``count`` start records, int64 ``[count]``."""
        ...


class BudgetAllocator(Protocol):
    """6. How many rollouts each start gets (``worldrl.budget_allocators``)."""

    def __call__(self, records: StartRecords, starts: Tensor, budget: int, /) -> Tensor:
        """Share ``budget`` rows out among starts ``[N]``: int64 ``[N]``, each at least 1, their sum is the budget."""
        ...


class RolloutScheduler(Protocol):
    """7. How an iteration's rollouts come about: at once, in stages, anew (``worldrl.rollout_schedulers``)."""

    def __call__(self, source: "Imagination[Any]", request: Request, mix: RewardMix, logs: Logs, /) -> Collected[Any]:
        """Let the source imagine and score; ``logs`` receives rewards and costs."""
        ...


class LogProb(Protocol[D_contra]):
    """8. How likely the kept decisions are now, and were (made by each imagination for its own decisions)."""

    def __call__(self, decisions: D_contra, generator: torch.Generator, /) -> Evaluated:
        """Show the decisions to the network again; ``generator`` serves those that draw fresh noise."""
        ...


class PolicyLoss(Protocol):
    """9. What a gradient step descends (``worldrl.policy_losses``)."""

    def __call__(self, found: Evaluated, /) -> tuple[Tensor, Logs]:
        """Return a scalar with gradient, and detached scalars by plain names."""
        ...


class UpdateController(Protocol):
    """10. How far the weights may go (``worldrl.update_controllers``)."""

    def before(self, logs: Mapping[str, Tensor]) -> float:
        """Return the factor on the learning rate of the step whose numbers ``logs`` holds by plain names; 0 leaves it out."""
        ...

    def after(self, iteration: int) -> Logs:
        """Follow once an iteration's steps are taken; return numbers for the log by plain names."""
        ...


# --- the two sides that they join --------------------------------------------------------------------------------------


class Imagination(RewardTransform[E], Protocol[E]):
    """Where experience comes from: a policy in a world model, or a video model. ``records`` are its starts."""

    @property
    def records(self) -> Any: ...  # noqa: D102

    def stream(self, iteration: int, what: str, *more: int) -> torch.Generator:
        """Name a random stream of an iteration."""
        ...

    def imagine(self, request: Request, /) -> E:
        """Imagine the rows that are asked for."""
        ...

    def reported(self, collected: Collected[E], /) -> Logs:
        """Say what was imagined: rewards, costs."""
        ...

    def learned(self, starts: Tensor, collected: Collected[E], /) -> None:
        """Keep what the rows from starts ``[N]`` tell of them."""
        ...

    def trace(self, request: Request, collected: Collected[E], /) -> Trace:
        """Return what estimators and selectors see; its ``explored`` is filled in once the terms are mixed."""
        ...

    def decisions(self, experience: E, advantage: Tensor, weight: Tensor, logs: Logs, /) -> Any:
        """Collect the decisions whose weight ``[T, B]`` is above 0; None or an empty one where there is none."""
        ...


# --- what a part needs of the method that it is put into ---------------------------------------------------------------

MATES, SUCCESS, PROBABILITY, SURPRISE, IMAGES, TREE, AVERAGE, BEGINNING, POLICY, DEMONSTRATIONS = (
    "several rollouts of one start",
    "rollouts that succeed or fail",
    "the success probability after each decision",
    "the log-probability of each decision",
    "the images before and after each decision",
    "rollouts that share their beginnings",
    "an average of the policy's weights",
    "the policy's weights of the iteration's beginning",
    "a policy that acts in imagination",
    "demonstrations in each gradient step",
)


def needs(*what: str) -> Callable[[P], P]:
    """Note what a part needs."""

    def note(part: P) -> P:
        part.needs = what  # type: ignore[attr-defined]
        return part

    return note


def needs_of(part: Any) -> tuple[str, ...]:
    """Return what a part needs; nothing where it does not say."""
    return getattr(part, "needs", ())


def lacking(part: Any, lacks: Mapping[str, str]) -> list[str]:
    """Return those of a part's needs that a method lacks."""
    return [need for need in needs_of(part) if need in lacks]


def progress(trace: "Trace", part: str) -> Tensor:
    """Gain of each decision, ``[T, B]``: d_t = Φ_t - Φ_{t-1}, Φ_{-1} = 0; 0 once the rollout is over."""
    potential = given(trace.probability, PROBABILITY, part)
    return potential.diff(dim=0, prepend=torch.zeros_like(potential[:1])) * trace.valid


def given(value: T | None, need: str, part: str) -> T:
    """Return what a trace holds; SettingError where it does not."""
    if value is None:
        raise SettingError(f"parts: {part} needs {need}, and these rollouts have none; leave it out")
    return value
