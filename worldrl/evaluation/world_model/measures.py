"""Raw numbers of the evaluation battery, measured for each held-out episode, frame by frame.

A model gets an episode's first frame and its actions, recorded and continued (``rollout.real.execution``), and continues from its own
frames; the simulator executes the same actions. Parts of a long list are measured one by one and joined; the numbers do not depend
on the division into parts.

Shapes legend: ``E`` episodes, ``F`` predicted frames, ``P`` points, ``S`` stored images of each, ``K`` clips of each,
``D`` features of a clip, ``W`` further views, ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.observation import IMAGE
from worldrl.core.storage.arrays import ArrayRecord
from worldrl.evaluation.world_model.further import STATE_ERRORS, further_pixel_errors, state_errors
from worldrl.evaluation.world_model.fvd import Fvd
from worldrl.evaluation.world_model.lpips import Lpips
from worldrl.evaluation.world_model.probe import Reader
from worldrl.evaluation.world_model.probe_frames import position_errors, spread
from worldrl.evaluation.world_model.rollout_error import Replay, replay, squared_error, static_error, success_steps
from worldrl.evaluation.world_model.ssim import ssim
from worldrl.evaluation.world_model.view_agreement import views_apart
from worldrl.rewards.grasp import GraspDynamics
from worldrl.rewards.success import SuccessRule, debounced_score
from worldrl.rollout.real.execution import HOLD_STEPS, TrueRun
from worldrl.rollout.real.specs import spec_of
from worldrl.rollout.trust.shown_grasp import closings, counted_steps
from worldrl.world_models.loading import AnyVideoModel

IMAGES = 12
"""Frames of each episode stored for filmstrips."""
STATIC_CHUNKS = 4
"""Chunks of holding still in the static test, as in the gates."""


@dataclass(frozen=True)
class Instruments:
    """Measuring instruments; None leaves a quantity out."""

    rule: SuccessRule  # when imagined frames count as success.
    probes: Mapping[str, Reader]  # read positions, by view; without the main one none are read.
    lpips: Lpips | None  # perceptual distance.
    fvd: Fvd | None  # features of clips for the Fréchet video distance.
    seed: int  # of the model's noise.
    grasp: GraspDynamics | None = None  # inverse dynamics of the closing hand.


@dataclass(frozen=True)
class Measures(ArrayRecord):
    """Raw numbers of ``E`` episodes; arrays of quantities that were not computed have a size of 0 after ``E``."""

    task: NDArray[np.str_]  # names ``[E]``; ``name`` of each episode, for people ``[E]``.
    name: NDArray[np.str_]
    recorded: NDArray[np.int64]  # recorded control steps, int64 ``[E]``; later steps continue them.
    repeated: NDArray[np.bool_]  # bool ``[E]``, the simulator repeated the recording.
    # mean squared pixel error ``[E, F]`` on the [0, 1] scale; ``ssim`` and ``lpips`` also ``[E, F]``.
    error: NDArray[np.float64]
    ssim: NDArray[np.float64]
    lpips: NDArray[np.float64]
    view_error: NDArray[np.float64]  # the same of each further view ``[E, F, W]``.
    state_cm: NDArray[np.float64]  # position error of the measured tool ``[E, F]`` (cm); ``state_deg`` of its rotation.
    state_deg: NDArray[np.float64]
    state_error: NDArray[np.float64]  # mean absolute error of other measured numbers ``[E, F]``, in their units.
    # features ``[E, K, D]`` of clips of the real frames; ``imagined_clips`` of the imagined ones.
    real_clips: NDArray[np.float32]
    imagined_clips: NDArray[np.float32]
    # position error ``[E, F, P]`` in imagined frames (cm), NaN for points that a scene lacks; ``across_cm`` its part
    # across the line of sight.
    probe_cm: NDArray[np.float64]
    across_cm: NDArray[np.float64]
    # the same in real frames, the probe's own error; ``real_across_cm`` its part across the line of sight.
    real_cm: NDArray[np.float64]
    real_across_cm: NDArray[np.float64]
    # distance between the positions that two views show ``[E, F, W P]`` (cm); ``real_apart_cm`` in real frames.
    apart_cm: NDArray[np.float64]
    real_apart_cm: NDArray[np.float64]
    # errors under another episode's actions and under the true ones, summed over the recorded frames, ``[E, 2]``.
    swapped: NDArray[np.float64]
    static: NDArray[np.float64]  # mean squared error ``[E]`` after holding still.
    predicted: NDArray[np.bool_]  # bool ``[E]``, imagined to succeed until ``HOLD_STEPS`` after the recorded actions.
    actual: NDArray[np.bool_]  # bool ``[E]``, succeeded in the simulator within the same steps.
    score: NDArray[np.float64]  # debounced probability of success ``[E]`` within the same steps.
    # minus the normalised error of the last closing before the imagined success ``[E]``, or within the same steps
    # without one (``rollout.trust.shown_grasp``). The largest negative number where a required closing is missing; NaN
    # without ``grasp``.
    agreement: NDArray[np.float64]
    real: NDArray[np.uint8]  # images uint8 ``[E, S, Y, X, 3]`` spread over the whole run; ``imagined`` likewise.
    imagined: NDArray[np.uint8]
    # images spread over the steps that decide the outcome; ``imagined_outcome`` likewise.
    real_outcome: NDArray[np.uint8]
    imagined_outcome: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.task)

    def select(self, rows: NDArray[np.bool_]) -> Measures:
        """Some episodes."""
        return Measures(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def measure(
    model: AnyVideoModel,
    runs: Sequence[TrueRun],
    swapped_actions: NDArray[np.float32],
    instruments: Instruments,
    *,
    row: int = 0,
) -> Measures:
    """Imagine true runs of one length (whole chunks of the model) and measure.

    ``swapped_actions`` float32 ``[E, T', A]`` are other episodes' actions in whole chunks; ``row`` is the number of the first run in the
    whole list.
    """
    episodes, seed = [run.episode for run in runs], instruments.seed
    result = replay(model, episodes, np.stack([e.action for e in episodes]), seed=seed, batch=len(runs), row=row)
    error, window = squared_error(result), outcome_window(result, runs)
    positions = _positions(result, runs, instruments.probes.get(IMAGE))
    apart = _apart(result, runs, instruments.probes)
    swapped = replay(model, episodes, swapped_actions, seed=seed, batch=len(runs), row=row)
    counted = replace(result, probability=np.where(window, result.probability, 0))
    success = success_steps(counted, instruments.rule)
    whole = np.full(len(runs), result.real.shape[1])
    return Measures(
        task=np.array([episode.task for episode in episodes]),
        name=np.array([spec_of(episode.meta).describe() for episode in episodes]),
        recorded=np.array([run.recorded for run in runs]),
        repeated=np.array([run.repeated for run in runs]),
        error=error,
        ssim=np.stack([ssim(*pair) for pair in zip(result.real, result.imagined, strict=True)]),
        lpips=_perceptual(result, instruments.lpips),
        view_error=further_pixel_errors(result),
        **_state(result),
        real_clips=_clips(result.real, instruments.fvd),
        imagined_clips=_clips(result.imagined, instruments.fvd),
        probe_cm=positions[0],
        across_cm=positions[1],
        real_cm=positions[2],
        real_across_cm=positions[3],
        apart_cm=apart[0],
        real_apart_cm=apart[1],
        swapped=_swapped_sums(squared_error(swapped), error, _frame_steps(result), runs),
        static=static_error(model, episodes, STATIC_CHUNKS * model.chunk_length, seed=seed, row=row),
        predicted=success >= 0,
        actual=np.array([run.succeeds_within(run.recorded + HOLD_STEPS) for run in runs]),
        score=debounced_score(counted.probability, instruments.rule.debounce).astype(np.float64),
        agreement=_agreement(runs, instruments.grasp, success),
        real=spaced(result.real, whole),
        imagined=spaced(result.imagined, whole),
        real_outcome=spaced(result.real, window.sum(axis=1)),
        imagined_outcome=spaced(result.imagined, window.sum(axis=1)),
    )


def _frame_steps(result: Replay) -> NDArray[np.int64]:
    """Control step of each predicted frame ``[F]``."""
    return result.frame_stride * (1 + np.arange(result.real.shape[1]))


def outcome_window(result: Replay, runs: Sequence[TrueRun]) -> NDArray[np.bool_]:
    """Mark the frames ``[E, F]`` that decide the outcome: the recorded actions and ``HOLD_STEPS`` of holding still."""
    until = np.array([run.recorded + HOLD_STEPS for run in runs])
    return _frame_steps(result)[None] <= until[:, None]


def _agreement(runs: Sequence[TrueRun], grasp: GraspDynamics | None, success: NDArray[np.int64]) -> NDArray[np.float64]:
    if grasp is None:
        return np.full(len(runs), np.nan)
    episodes = [run.episode for run in runs]
    frame, command = (
        torch.from_numpy(np.stack(part)) for part in ([e.main_view[0] for e in episodes], [e.command for e in episodes])
    )
    until = counted_steps(success, np.array([run.recorded + HOLD_STEPS for run in runs]))
    # Every episode is read as an imagined success: a rule may count it where the score alone does not.
    every = np.ones(len(runs), dtype=np.bool_)
    normalised_error = closings(grasp, frame, [e.instruction for e in episodes], command, until, every)[1]
    # Infinite errors become the largest number, since files hold no infinity.
    return -np.nan_to_num(normalised_error.astype(np.float64), nan=np.nan)


def image_frames(frames: int) -> NDArray[np.int64]:
    """Choose ``IMAGES`` of ``frames`` frames evenly, including the last one."""
    return np.ceil(np.arange(1, IMAGES + 1) * frames / IMAGES).astype(np.int64) - 1


def spaced(films: NDArray[np.uint8], counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Select ``IMAGES`` of the first frames of each video, ``counts`` of them."""
    return np.stack([film[image_frames(int(count))] for film, count in zip(films, counts, strict=True)])


def _perceptual(result: Replay, lpips: Lpips | None) -> NDArray[np.float64]:
    if lpips is None:
        return np.zeros((len(result.real), 0))
    return np.stack([lpips.distance(*pair) for pair in zip(result.real, result.imagined, strict=True)])


def _state(result: Replay) -> dict[str, NDArray[np.float64]]:
    found, none = state_errors(result), np.zeros((len(result.real), 0))
    return {name: found.get(name, none) for name in STATE_ERRORS}


def _clips(frames: NDArray[np.uint8], fvd: Fvd | None) -> NDArray[np.float32]:
    if fvd is None:
        return np.zeros((len(frames), 0), np.float32)
    return np.stack([fvd.features(film) for film in frames])


def _positions(result: Replay, runs: Sequence[TrueRun], probe: Reader | None) -> list[NDArray[np.float64]]:
    """Position errors ``[E, F, P]``: imagined frames, the part across the line of sight, and both in real frames."""
    if probe is None:
        return [np.zeros((*result.real.shape[:2], 0))] * 4
    steps, found = _frame_steps(result), []
    for frames in (result.imagined, result.real):
        read = [probe.read(frames[row], run.episode.task) for row, run in enumerate(runs)]
        true = [spread(run, probe.names)[steps] for run in runs]
        errors = [position_errors(*entry) for entry in zip(read, true, runs, strict=True)]
        found += [np.stack(part) for part in zip(*errors, strict=True)]
    return found


def _apart(result: Replay, runs: Sequence[TrueRun], probes: Mapping[str, Reader]) -> list[NDArray[np.float64]]:
    """Distances ``[E, F, W P]`` between views, in imagined and in real frames; of size 0 with one probe or none."""
    if len(probes) < 2:
        return [np.zeros((*result.real.shape[:2], 0))] * 2
    real, imagined = (
        {IMAGE: main, **{name: pair[which] for name, pair in result.further.items()}}
        for which, main in enumerate((result.real, result.imagined))
    )
    return [
        np.stack(
            [
                views_apart(probes, {name: view[row] for name, view in shown.items()}, run, _frame_steps(result))
                for row, run in enumerate(runs)
            ]
        )
        for shown in (imagined, real)
    ]


def _swapped_sums(
    swapped: NDArray[np.float64], true: NDArray[np.float64], steps: NDArray[np.int64], runs: Sequence[TrueRun]
) -> NDArray[np.float64]:
    count = swapped.shape[1]
    recorded = steps[None, :count] <= np.array([run.recorded for run in runs])[:, None]
    return np.stack([(swapped * recorded).sum(axis=1), (true[:, :count] * recorded).sum(axis=1)], axis=1)
