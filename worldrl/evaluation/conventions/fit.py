"""Finds which convention of recorded demonstrations differs from the suite's: the fit of each alternative, and a verdict.

Demonstrations are replayed open loop. Where they fail, alternatives (``conventions.py``) are tried, one family at a time, and the best
fit is selected: more successes first, then a smaller *tracking error*, the distance of the replayed state from the recorded one.
Demonstrations without their initial states are replayed from other ones; there only the motion of the hand is compared. Images and
states of the first frame need no replay: they are compared as they are, and under each alternative.

Meanings and tracking errors of a robot are in ``tool.py`` (LIBERO's seven numbers) and ``joint.py`` (absolute joint targets).

Shapes legend: ``T`` steps, ``N`` demonstrations, ``A`` numbers of an action, ``S`` of a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.types import Episode
from worldrl.evaluation.conventions.conventions import Actions, Alternative
from worldrl.rollout.real.slots import Replay

ROUNDS = 3  # families of conventions that may differ at once
BETTER = 0.7
"""An alternative without further successes must shrink the error to this share."""
CLEAR = 0.2
"""Where demonstrations succeed as they are, a meaning other than a delay must shrink the error to this share: an easy task
tolerates a wrong rotation, and different physics is no convention."""
SHARE_OF_SUCCESS = 0.95
"""Share of successes from which demonstrations need no alternative."""
EXACT_M = 1e-3
"""Tracking error (m) up to which nothing is searched. Delayed actions still succeed when they are replayed, and easy tasks
tolerate more, so success alone is not enough."""
NEAR_M = 0.05
"""Tracking error (m) up to which demonstrations fit when they are replayed from other initial states. There the hand closes
without the object it held, a few centimetres of opening."""
MOVED = 1e-3
"""Mean |action| below which demonstrations do not exercise a component."""


@dataclass(frozen=True)
class Fit(ABC):
    """How well demonstrations repeat."""

    successes: int
    episodes: int
    # whether success counts; false where the initial states are not the demonstrations' own.
    judged: bool = field(default=True, kw_only=True)
    # successes from the same initial states without the demonstrations' actions; no more of them mean nothing.
    idle: int = field(default=0, kw_only=True)

    @property
    @abstractmethod
    def error_m(self) -> float:
        """Tracking error in one number (m)."""

    @property
    @abstractmethod
    def cells(self) -> dict[str, str]:
        """Parts of the tracking error for tables, by name with unit."""

    @property
    def good(self) -> bool:
        """Whether the demonstrations need no other meaning."""
        if not self.judged:
            return self.error_m <= NEAR_M
        return self.successes >= SHARE_OF_SUCCESS * self.episodes

    @property
    def telling(self) -> int:
        """Successes for the comparison with other meanings; all counts up to ``idle`` are equal."""
        return max(self.successes, self.idle) * self.judged

    @property
    def idle_too(self) -> bool:
        """Whether it succeeds no more often than without the demonstrations' actions."""
        return self.judged and self.successes <= self.idle

    @property
    def rank(self) -> tuple[int, float]:
        """More successes first, then a smaller error; larger is better."""
        return self.telling, -self.error_m

    def beats(self, other: Fit) -> bool:
        """Whether this is a better explanation, not only another one."""
        if self.telling != other.telling:
            return self.telling > other.telling
        return self.error_m < BETTER * other.error_m


@dataclass(frozen=True)
class Trial:
    """One set of alternatives that was replayed."""

    names: tuple[str, ...]
    fit: Fit


@dataclass(frozen=True)
class Search:
    """Result of the replays."""

    # alternatives that must hold for the demonstrations to repeat; empty where they repeat as they are.
    chosen: tuple[Alternative, ...]
    as_recorded: Fit  # fit of the unchanged actions.
    best: Fit  # fit of the chosen alternatives.
    trials: tuple[Trial, ...]  # all that were tried, best first.


F = TypeVar("F", bound=Fit)


class Conventions(Protocol[F]):
    """Possible meanings of the numbers of one robot's demonstrations."""

    @property
    def spec(self) -> ActionSpec:
        """Meaning of an action's numbers in the suite."""
        ...

    def alternatives(self, fit: F, actions: Sequence[Actions]) -> list[Alternative]:
        """Other meanings of actions ``[T, A]`` that fit like ``fit`` as they are."""
        ...

    def unexercised(self, actions: Sequence[Actions]) -> list[str]:
        """Families without evidence, because the demonstrations never use that part of an action."""
        ...

    def measure(self, replays: Sequence[Replay], demonstrations: Sequence[Episode], known: bool) -> F:
        """Compare replays with their recordings; with other initial states (not ``known``), both motions."""
        ...

    def states(self, recorded: NDArray[np.float32], suite: NDArray[np.float32]) -> Iterator[Match]:
        """Compare the parts of the first states ``[N, S]``, each under its own alternatives."""
        ...


def search(actions: Sequence[Actions], play: Callable[[Sequence[Actions]], F], robot: Conventions[F]) -> Search:
    """Find the alternatives under which demonstrations ``[T, A]`` repeat; up to ``ROUNDS`` families may differ at once."""
    as_recorded = play(actions)
    chosen: tuple[Alternative, ...] = ()
    best, now = as_recorded, list(actions)
    trials = [Trial((), as_recorded)]
    silent = set(robot.unexercised(actions))
    for _ in range(ROUNDS):
        if best.good and best.error_m <= EXACT_M:
            break
        taken = silent | {alternative.family for alternative in chosen}
        tried: list[tuple[F, Alternative]] = []
        for alternative in robot.alternatives(best, now):
            if alternative.family not in taken:
                fit = play(changed(alternative, now))
                if convincing(alternative, fit, best):
                    tried.append((fit, alternative))
                trials.append(Trial((*(a.name for a in chosen), f"{alternative.family}: {alternative.name}"), fit))
        if not tried:
            break
        fit, alternative = max(tried, key=lambda pair: pair[0].rank)
        best, chosen, now = fit, (*chosen, alternative), changed(alternative, now)
    ranked = tuple(sorted(trials, key=lambda trial: trial.fit.rank, reverse=True))
    if as_recorded.judged and not as_recorded.good and not explains(best, as_recorded):
        return Search((), as_recorded, as_recorded, ranked)  # nearer, but not more successful: no explanation
    return Search(chosen, as_recorded, best, ranked)


def explains(best: Fit, as_recorded: Fit) -> bool:
    """Whether failing demonstrations succeed in another meaning; where ``idle`` ones succeed too, the motion must fit as well."""
    if best.telling > as_recorded.telling:
        return True
    return best.successes > as_recorded.successes and best.error_m < CLEAR * as_recorded.error_m


def convincing(alternative: Alternative, fit: Fit, best: Fit) -> bool:
    """Whether an alternative explains more than those found so far."""
    if best.judged and best.good and alternative.family != "delay":
        return fit.successes >= best.successes and fit.error_m < CLEAR * best.error_m
    return fit.beats(best)


def changed(alternative: Alternative, actions: Sequence[Actions]) -> list[Actions]:
    """Actions in another meaning; not clipped, since a further meaning may bring them back into the robot's range."""
    return [alternative.change(action).astype(np.float32) for action in actions]


def rms(values: NDArray[np.float64]) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


# --- states and images of the first frame ---


@dataclass(frozen=True)
class Match:
    """Comparison of recorded numbers of the first frame."""

    what: str  # ``state rotation``, ``image of scene``, ...
    chosen: Alternative | None  # the alternative that fits clearly better, or None.
    error: float  # mean absolute difference as recorded.
    best: float  # that of the best alternative.


def match(what: str, recorded: NDArray[Any], suite: NDArray[Any], alternatives: Sequence[Alternative]) -> Match:
    """Compare recorded first frames ``[N, ...]`` with the suite's after reset to the same states, as they are and under each alternative."""
    own = suite.astype(np.float64)

    def error(given: NDArray[Any]) -> float:
        return float(np.abs(given.astype(np.float64) - own).mean())

    plain = error(recorded)
    errors = {alternative.name: error(alternative.change(recorded)) for alternative in alternatives}
    best = min(alternatives, key=lambda alternative: errors[alternative.name])
    clear = errors[best.name] < BETTER * plain
    return Match(what, best if clear else None, plain, errors[best.name])


def part_match(
    what: str,
    part: slice | list[int],
    recorded: NDArray[np.float32],
    suite: NDArray[np.float32],
    alternatives: Sequence[Alternative],
) -> Match:
    """Compare some numbers of the first states ``[N, S]``; the others are replaced by the suite's."""
    places = np.arange(recorded.shape[1])
    masked = np.where(np.isin(places, places[part]), recorded, suite)
    return match(what, masked, suite, alternatives)


# --- verdict ----------------------------------------------------------------------------------------------------------


def fits(found: Search, matches: Sequence[Match]) -> bool | None:
    """Whether demonstrations have the meaning of the suite; None where they succeed no more often than idle actions."""
    if found.chosen or any(item.chosen for item in matches) or not found.as_recorded.good:
        return False
    return None if found.as_recorded.idle_too else True


def verdict(found: Search, matches: Sequence[Match]) -> str:
    """Describe in a few lines what differs and which line to change."""
    fit = found.as_recorded
    lines = [f"{fit.successes} of {fit.episodes} demonstrations succeed as they are recorded."]
    if not fit.judged:
        lines = [
            f"{fit.episodes} demonstrations do not state where they began, and were replayed from other initial states of their "
            f"tasks: by the hand's motion alone, {100 * fit.error_m:.2g} cm off as recorded."
        ]
    if fit.good and not found.chosen:
        lines += [undecided(fit)] if fit.idle_too else []
        lines[0] += "" if fit.idle_too else " Actions mean what this suite means."
    for alternative in found.chosen:
        lines.append(f"{alternative.family}: {alternative.name}. Change: {alternative.line}")
    if found.chosen:
        best = found.best
        succeed = f"{best.successes} of {best.episodes} succeed, " if best.judged else "they are "
        lines.append(f"With that, {succeed}{100 * best.error_m:.2g} cm off.")
    elif not fit.good:
        lines.append(
            f"No convention that was tried explains it (tracking error {100 * fit.error_m:.2g} cm as recorded): check "
            "the initial states, the control rate, and the physics' versions."
        )
    for found_match in matches:
        if found_match.chosen is not None:
            lines.append(f"{found_match.what}: {found_match.chosen.name}. Change: {found_match.chosen.line}")
    return "\n".join(lines)


def undecided(fit: Fit) -> str:
    """Explain that success decides nothing here, what tracking shows, and what to do."""
    near = "as near as with the same meaning" if fit.error_m <= EXACT_M else "too far for the same meaning"
    return (
        f"Not decided: {fit.idle} of {fit.episodes} succeed without the demonstrations' actions, so success is no evidence of their "
        f"meaning. The motion alone decides here: the replay is {100 * fit.error_m:.2g} cm off the recorded states, {near}. Check "
        "demonstrations of another task as well, one that neither doing nothing nor random actions fulfil."
    )
