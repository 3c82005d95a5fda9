"""Where success and failure part: the moment, counted from the closing of the gripper, that first shows the outcome.

WoVR starts imagined rollouts at one hand-picked frame per task. Here episodes of a task are aligned at their first
closing of the gripper, and at every moment the distance of successes and failures is measured.

Shapes: ``N`` episodes, ``O`` moments, ``d`` features.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from worldrl.core.statistics.intervals import sps
from worldrl.core.types import Episode

SPAN = 24  # Control steps compared before and after the closing

FINGER, REACH, TURN = 0.5, 0.02, 0.1
"""What counts as much: fingers apart by half the unit of their opening (1 cm), the hand higher by 2 cm, a joint turned by
0.1 rad, a contact more."""

HEIGHT = 2  # Where a commanded tool pose has its height (m)

NOISE = 0.05  # Added to every feature's variance: two identical courses and one that differs by a hair are not apart

SIGNIFICANCE = 0.05
"""Chance that outcomes which nothing tells apart are taken to part, over all moments together (Bonferroni)."""


def course(episode: Episode, closing: int, span: int = SPAN) -> NDArray[np.float64]:
    """Describe an episode around frame ``closing``: openings, contact and motion since the closing, ``[2 span + 1, d]``.

    The motion is the height that a tool gained, or how far each commanded joint turned. Before its beginning and after its
    end an episode stands still.
    """
    frame = np.clip(closing + np.arange(-span, span + 1), 0, len(episode))
    opening = episode.opening[frame] / (FINGER * episode.actions.opening_unit)
    parts = (opening, episode.contact[frame, None], _motion(episode, frame, closing))
    return np.concatenate(parts, axis=1, dtype=np.float64)


def _motion(episode: Episode, frame: NDArray[np.int64], closing: int) -> NDArray[np.float32]:
    moved, actions = episode.command[frame] - episode.command[closing], episode.actions
    if not actions.absolute:
        return moved[:, HEIGHT, None] / REACH
    return np.delete(moved, actions.grippers, axis=1) / TURN


def fisher_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Squared distance of two groups ``[N, d]`` in pooled deviations: Δμᵀ (S + noise)⁻¹ Δμ (Fisher 1936)."""
    apart = a.mean(axis=0) - b.mean(axis=0)
    scatter = sum((group - group.mean(axis=0)).T @ (group - group.mean(axis=0)) for group in (a, b))
    pooled = scatter / max(len(a) + len(b) - 2, 1) + NOISE * np.eye(len(apart))
    return float(apart @ np.linalg.solve(pooled, apart))


def hotelling_p(distance: float, n: int, m: int, features: int) -> float:
    """Chance of such a squared distance between groups of ``n`` and ``m`` from one population (Hotelling 1931)."""
    left = n + m - features - 1
    if left < 1:
        return 1.0
    t2 = n * m / (n + m) * distance
    return float(sps.f.sf(left / ((n + m - 2) * features) * t2, features, left))


def divergence_step(episodes: Sequence[Episode], span: int = SPAN) -> int | None:
    """Find where the outcomes of one task's episodes part, within ``span`` control steps of the closing.

    Control steps after the first closing of the gripper, possibly negative, at which the distance first reaches half of
    its largest; None where fewer than two of either outcome closed the gripper, or nothing distinguishes them for
    certain.
    """
    courses: dict[bool, list[NDArray[np.float64]]] = {True: [], False: []}
    for episode in episodes:
        if (closing := first_closing(episode)) is not None:
            courses[episode.success].append(course(episode, closing, span))
    if min(map(len, courses.values())) < 2:
        return None
    success, failure = np.stack(courses[True]), np.stack(courses[False])
    distance = [fisher_distance(success[:, o], failure[:, o]) for o in range(2 * span + 1)]
    if hotelling_p(max(distance), len(success), len(failure), success.shape[2]) * len(distance) > SIGNIFICANCE:
        return None
    return int(np.flatnonzero(np.array(distance) >= max(distance) / 2)[0]) - span


def first_closing(episode: Episode) -> int | None:
    """Return the first frame with a gripper commanded closed that was open before, None where none ever closed."""
    closed = episode.actions.closed(episode.command)
    closings = np.flatnonzero((closed[1:] & ~closed[:-1]).any(axis=1)) + 1
    return int(closings[0]) if closings.size else None


def partings(episodes: Sequence[Episode]) -> Mapping[str, int]:
    """Find each task's divergence; tasks without one are left out."""
    tasks = sorted({episode.task for episode in episodes})
    found = {task: divergence_step([e for e in episodes if e.task == task]) for task in tasks}
    return {task: offset for task, offset in found.items() if offset is not None}
