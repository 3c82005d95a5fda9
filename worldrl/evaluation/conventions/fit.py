"""Which convention of recorded demonstrations is not the suite's: how well each alternative fits, and a verdict.

Demonstrations are replayed open loop. Where they do not succeed although they once did, alternatives
(``evaluation/conventions.py``) are tried, one family at a time, and what fits best is kept: more successes first, then a
smaller *tracking error*, which is how far the replayed state is from the recorded one. Demonstrations that do not say where
they began are replayed from other initial states of their task: whether those succeed says nothing, and the hand's motion
alone is compared. Pictures and states of the first
frame need no replay: they are compared as they are, and under each alternative.

What a robot's numbers may have meant, and how far its replays are off, is for ``evaluation/tool_conventions.py`` (LIBERO's seven
numbers) and ``evaluation/joint_conventions.py`` (absolute joint targets) to say.

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
from worldrl.rollout.suites.replays import Replay

BETTER = 0.7
"""An alternative that brings no further success must shrink the error to this share to be believed."""
CLEAR = 0.2
"""Where demonstrations succeed as they are, another meaning than a delay must shrink the error to this share: an easy task
forgives a wrong rotation, and another physics is no convention."""
SHARE_OF_SUCCESS = 0.95
"""Demonstrations that succeed this often as they are need no alternative to succeed."""
EXACT_M = 1e-3
"""Tracking error (m) up to which nothing is looked for. Actions that were recorded late or early succeed all the same
when they are replayed, only later or earlier, and easy tasks forgive more, so success alone does not clear them."""
NEAR_M = 0.05
"""Tracking error (m) up to which demonstrations replayed from other initial states are taken to fit: there the hand closes
on nothing where it held an object, which is a few centimetres of opening."""
MOVED = 1e-3
"""Mean |action| below which demonstrations do not exercise a component."""


@dataclass(frozen=True)
class Fit(ABC):
    """How well demonstrations repeat.

    Attributes:
        successes: demonstrations that fulfil their task.
        episodes: demonstrations.
        judged: whether success counts: not where the initial states are others than the demonstrations'.
        idle: successes from the same initial states without the demonstrations' actions: no more of them say nothing.
    """

    successes: int
    episodes: int
    judged: bool = field(default=True, kw_only=True)
    idle: int = field(default=0, kw_only=True)

    @property
    @abstractmethod
    def error_m(self) -> float:
        """Tracking error in one number (m)."""

    @property
    @abstractmethod
    def cells(self) -> dict[str, str]:
        """Parts of the tracking error, for tables: by their names with units."""

    @property
    def good(self) -> bool:
        """Whether the demonstrations need no other meaning."""
        if not self.judged:
            return self.error_m <= NEAR_M
        return self.successes >= SHARE_OF_SUCCESS * self.episodes

    @property
    def telling(self) -> int:
        """Successes as they count against those of other meanings: alike up to as many as come without any meaning."""
        return max(self.successes, self.idle) * self.judged

    @property
    def idle_too(self) -> bool:
        """Whether it succeeds no more often than what has nothing to do with the demonstrations."""
        return self.judged and self.successes <= self.idle

    @property
    def rank(self) -> tuple[int, float]:
        """More successes first, then a smaller error; larger is better."""
        return self.telling, -self.error_m

    def beats(self, other: Fit) -> bool:
        """Whether this is a better explanation and not just another one."""
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
    """What replaying found.

    Attributes:
        chosen: alternatives that must hold for the demonstrations to repeat; empty where they do as they are.
        as_recorded: fit of the untouched actions.
        best: fit of the chosen ones.
        trials: everything tried, best first.
    """

    chosen: tuple[Alternative, ...]
    as_recorded: Fit
    best: Fit
    trials: tuple[Trial, ...]


F = TypeVar("F", bound=Fit)


class Conventions(Protocol[F]):
    """What the numbers of one robot's demonstrations may mean."""

    @property
    def spec(self) -> ActionSpec:
        """What an action's numbers are in the suite."""
        ...

    def alternatives(self, fit: F, actions: Sequence[Actions]) -> list[Alternative]:
        """Other meanings of actions ``[T, A]``, which fit like this as they are."""
        ...

    def unexercised(self, actions: Sequence[Actions]) -> list[str]:
        """Families that demonstrations say nothing about, because they never use that part of an action."""
        ...

    def measure(self, replays: Sequence[Replay], demonstrations: Sequence[Episode], known: bool) -> F:
        """Hold replays against their recordings; where these began elsewhere (not ``known``), how both moved."""
        ...

    def states(self, recorded: NDArray[np.float32], suite: NDArray[np.float32]) -> Iterator[Match]:
        """Compare the parts of the first states ``[N, S]``, each under its own alternatives."""
        ...


def search(
    actions: Sequence[Actions], play: Callable[[Sequence[Actions]], F], robot: Conventions[F], *, rounds: int = 3
) -> Search:
    """Find the alternatives under which demonstrations repeat.

    Args:
        actions: of each demonstration, ``[T, A]``.
        play: replays them, and says how well they fit.
        robot: what its actions may have meant.
        rounds: how many families may be off at once.
    """
    as_recorded = play(actions)
    chosen: tuple[Alternative, ...] = ()
    best, now = as_recorded, list(actions)
    trials = [Trial((), as_recorded)]
    silent = set(robot.unexercised(actions))
    for _ in range(rounds):
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
        return Search((), as_recorded, as_recorded, ranked)  # nearer, but no more successful: that explains nothing
    return Search(chosen, as_recorded, best, ranked)


def explains(best: Fit, as_recorded: Fit) -> bool:
    """Whether failing demonstrations succeed in another meaning; where anything succeeds, its motion must be theirs as well."""
    if best.telling > as_recorded.telling:
        return True
    return best.successes > as_recorded.successes and best.error_m < CLEAR * as_recorded.error_m


def convincing(alternative: Alternative, fit: Fit, best: Fit) -> bool:
    """Whether an alternative explains more than what was found so far."""
    if best.judged and best.good and alternative.family != "delay":
        return fit.successes >= best.successes and fit.error_m < CLEAR * best.error_m
    return fit.beats(best)


def changed(alternative: Alternative, actions: Sequence[Actions]) -> list[Actions]:
    """Actions in another meaning; what lies outside the robot's range is the player's business: it may come back in the next one."""
    return [alternative.change(action).astype(np.float32) for action in actions]


def rms(values: NDArray[np.float64]) -> float:
    """Root mean square of all values."""
    return float(np.sqrt(np.mean(np.square(values))))


# --- states and pictures of the first frame ---


@dataclass(frozen=True)
class Match:
    """What recorded numbers of the first frame look like.

    Attributes:
        what: ``state rotation``, ``picture of scene``, ...
        chosen: the alternative that fits clearly better, or None.
        error: mean absolute difference as recorded.
        best: that of the best alternative.
    """

    what: str
    chosen: Alternative | None
    error: float
    best: float


def match(what: str, recorded: NDArray[Any], suite: NDArray[Any], alternatives: Sequence[Alternative]) -> Match:
    """Compare recorded first frames with the suite's own, as they are and under each alternative.

    Args:
        what: name of the comparison.
        recorded: ``[N, ...]``, one per demonstration.
        suite: likewise, after the suite's reset to the same initial states.
        alternatives: of the recorded ones.
    """
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
    """Compare some numbers of the first states ``[N, S]``, the others being taken as the suite's own."""
    places = np.arange(recorded.shape[1])
    masked = np.where(np.isin(places, places[part]), recorded, suite)
    return match(what, masked, suite, alternatives)


# --- verdict ----------------------------------------------------------------------------------------------------------


def fits(found: Search, matches: Sequence[Match]) -> bool | None:
    """Whether demonstrations mean what the suite means; None where they succeed, but no more often than nothing does."""
    if found.chosen or any(item.chosen for item in matches) or not found.as_recorded.good:
        return False
    return None if found.as_recorded.idle_too else True


def verdict(found: Search, matches: Sequence[Match]) -> str:
    """Say in a few lines what is off and which line to change."""
    fit = found.as_recorded
    lines = [f"{fit.successes} of {fit.episodes} demonstrations succeed as they are recorded."]
    if not fit.judged:
        lines = [
            f"{fit.episodes} demonstrations do not say where they began, and were replayed from other initial states of their "
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
    """Say that success decides nothing here, what tracking says instead, and what to do."""
    near = "as near as with the same meaning" if fit.error_m <= EXACT_M else "too far to speak for the same meaning"
    return (
        f"Not decided: {fit.idle} of {fit.episodes} succeed without the demonstrations' actions, so success says nothing of what "
        f"these mean. The motion alone decides here: the replay is {100 * fit.error_m:.2g} cm off the recorded states, {near}. Check "
        "demonstrations of another task as well, one that neither doing nothing nor random actions fulfil."
    )
