"""What is measured of each held-out episode, frame by frame: the evaluation battery's raw numbers.

A model gets an episode's first frame and its actions, recorded and continued (``rollout.real.execution``), and goes on from
its own frames; the simulator executes the same actions. Parts of a long list are measured one by one and joined, and
their numbers do not depend on how the list was cut.

Shapes legend: ``E`` episodes, ``F`` predicted frames, ``P`` points, ``S`` pictures kept of each, ``K`` clips of each,
``D`` features of a clip, ``Y X`` pixels.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.atomic import write_file
from worldrl.evaluation.world_model.fvd import Fvd
from worldrl.evaluation.world_model.lpips import Lpips
from worldrl.evaluation.world_model.probe import Reader
from worldrl.evaluation.world_model.probe_frames import position_errors, spread
from worldrl.evaluation.world_model.rollout_error import Replay, replay, squared_error, static_error, success_steps
from worldrl.evaluation.world_model.ssim import ssim
from worldrl.rewards.grasp import GraspDynamics
from worldrl.rewards.success import SuccessRule, debounced_score
from worldrl.rollout.real.execution import HOLD_STEPS, TrueRun
from worldrl.rollout.real.specs import spec_of
from worldrl.rollout.trust.shown_grasp import closings, counted_steps
from worldrl.world_models.loading import AnyVideoModel

IMAGES = 12
"""Frames kept of each episode for filmstrips."""
STATIC_CHUNKS = 4
"""Chunks of holding still in the static test, as in the gates."""


@dataclass(frozen=True)
class Instruments:
    """What measures.

    Attributes:
        rule: when imagined frames count as success.
        probe: reads positions, or None.
        lpips: perceptual distance, or None.
        fvd: describes clips for the Fréchet video distance, or None.
        seed: of the model's noise.
        grasp: judges where the hand closes, or None.
    """

    rule: SuccessRule
    probe: Reader | None
    lpips: Lpips | None
    fvd: Fvd | None
    seed: int
    grasp: GraspDynamics | None = None


@dataclass(frozen=True)
class Measures:
    """Raw numbers of ``E`` episodes.

    Attributes:
        task: names ``[E]``.
        name: of each episode, for people ``[E]``.
        recorded: int64 ``[E]``, control steps that were recorded; what follows continues them.
        repeated: bool ``[E]``, the simulator repeated the recording.
        error: mean squared pixel error ``[E, F]`` on the [0, 1] scale.
        ssim: ``[E, F]``.
        lpips: ``[E, F]``, or ``[E, 0]`` where it is not computed.
        real_clips: features ``[E, K, D]`` of the real frames' clips, or ``[E, 0]`` where they are not computed.
        imagined_clips: likewise of the imagined frames.
        probe_cm: position error ``[E, F, P]`` in imagined frames (cm); NaN for points a scene lacks; ``[E, F, 0]``
            where it is not computed.
        across_cm: the part of it across the line of sight.
        real_cm: position error in the real frames: the probe's own.
        real_across_cm: the part of it across the line of sight.
        swapped: ``[E, 2]``, errors under another episode's actions and under the true ones, summed over the recorded
            frames.
        static: mean squared error ``[E]`` after holding still.
        predicted: bool ``[E]``, imagined to succeed until ``HOLD_STEPS`` after the recorded actions.
        actual: bool ``[E]``, succeeded in the simulator within the same steps.
        score: debounced probability of success ``[E]`` within the same steps.
        agreement: ``[E]``, minus the surprise at the last closing before the imagined success, or within the same steps where
            there is none (``rollout.trust.shown_grasp``), the largest negative number where a closing was needed and there was none;
            NaN where nothing judges the grasp.
        real: uint8 ``[E, S, Y, X, 3]``, pictures spread over the whole run; ``imagined`` likewise.
        imagined: see ``real``.
        real_outcome: uint8 ``[E, S, Y, X, 3]``, pictures spread over the steps that decide the outcome;
            ``imagined_outcome`` likewise.
        imagined_outcome: see ``real_outcome``.
    """

    task: NDArray[np.str_]
    name: NDArray[np.str_]
    recorded: NDArray[np.int64]
    repeated: NDArray[np.bool_]
    error: NDArray[np.float64]
    ssim: NDArray[np.float64]
    lpips: NDArray[np.float64]
    real_clips: NDArray[np.float32]
    imagined_clips: NDArray[np.float32]
    probe_cm: NDArray[np.float64]
    across_cm: NDArray[np.float64]
    real_cm: NDArray[np.float64]
    real_across_cm: NDArray[np.float64]
    swapped: NDArray[np.float64]
    static: NDArray[np.float64]
    predicted: NDArray[np.bool_]
    actual: NDArray[np.bool_]
    score: NDArray[np.float64]
    agreement: NDArray[np.float64]
    real: NDArray[np.uint8]
    imagined: NDArray[np.uint8]
    real_outcome: NDArray[np.uint8]
    imagined_outcome: NDArray[np.uint8]

    def __len__(self) -> int:
        """Return ``E``."""
        return len(self.task)

    def select(self, rows: NDArray[np.bool_]) -> Measures:
        """Keep some episodes."""
        return Measures(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @classmethod
    def join(cls, parts: Sequence[Measures]) -> Measures:
        """Put the parts of a list together again."""
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)})

    def save(self, file: Path) -> None:
        """Write all arrays into one ``.npz`` file, whole or not at all."""
        data = io.BytesIO()
        np.savez_compressed(data, **{field.name: getattr(self, field.name) for field in fields(self)})
        write_file(file, data.getvalue())

    @classmethod
    def load(cls, file: Path) -> Measures:
        """Read :meth:`save`'s file.

        Raises:
            ArtefactError: the file is missing, truncated or something else.
        """
        try:
            with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as data:
                return cls(**{field.name: data[field.name] for field in fields(cls)})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ArtefactError(f"{file}: cannot be read as measures: {error}; delete it and run again") from error


def measure(
    model: AnyVideoModel,
    runs: Sequence[TrueRun],
    swapped_actions: NDArray[np.float32],
    instruments: Instruments,
    *,
    row: int = 0,
) -> Measures:
    """Imagine some true runs and measure.

    Args:
        model: the world model.
        runs: of one length, a whole number of the model's chunks.
        swapped_actions: float32 ``[E, T', A]``, other episodes' actions, whole chunks of them.
        instruments: what measures.
        row: number of the first run in the list that this is a part of.
    """
    episodes, seed = [run.episode for run in runs], instruments.seed
    result = replay(model, episodes, np.stack([e.action for e in episodes]), seed=seed, batch=len(runs), row=row)
    error, window = squared_error(result), outcome_window(result, runs)
    positions = _positions(result, runs, instruments.probe)
    swapped = replay(model, episodes, swapped_actions, seed=seed, batch=len(runs), row=row)
    judged = replace(result, probability=np.where(window, result.probability, 0))
    success = success_steps(judged, instruments.rule)
    return Measures(
        task=np.array([episode.task for episode in episodes]),
        name=np.array([spec_of(episode.meta).describe() for episode in episodes]),
        recorded=np.array([run.recorded for run in runs]),
        repeated=np.array([run.repeated for run in runs]),
        error=error,
        ssim=np.stack([ssim(*pair) for pair in zip(result.real, result.imagined, strict=True)]),
        lpips=_perceptual(result, instruments.lpips),
        real_clips=_clips(result.real, instruments.fvd),
        imagined_clips=_clips(result.imagined, instruments.fvd),
        probe_cm=positions[0],
        across_cm=positions[1],
        real_cm=positions[2],
        real_across_cm=positions[3],
        swapped=_swapped_sums(squared_error(swapped), error, _frame_steps(result), runs),
        static=static_error(model, episodes, STATIC_CHUNKS * model.chunk_length, seed=seed, row=row),
        predicted=success >= 0,
        actual=np.array([run.succeeds_within(run.recorded + HOLD_STEPS) for run in runs]),
        score=debounced_score(judged.probability, instruments.rule.debounce).astype(np.float64),
        agreement=_agreement(runs, instruments.grasp, success),
        real=np.stack([spaced(frames, len(frames)) for frames in result.real]),
        imagined=np.stack([spaced(frames, len(frames)) for frames in result.imagined]),
        real_outcome=np.stack([spaced(f, int(n)) for f, n in zip(result.real, window.sum(axis=1), strict=True)]),
        imagined_outcome=np.stack(
            [spaced(f, int(n)) for f, n in zip(result.imagined, window.sum(axis=1), strict=True)]
        ),
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
    # Judged as if all claimed a success: a rule may count what the score alone does not.
    every = np.ones(len(runs), dtype=np.bool_)
    normalised_error = closings(grasp, frame, [e.instruction for e in episodes], command, until, every)[1]
    # An infinite doubt as the largest number: files hold no infinity.
    return -np.nan_to_num(normalised_error.astype(np.float64), nan=np.nan)


def image_frames(frames: int) -> NDArray[np.int64]:
    """Choose ``IMAGES`` of ``frames`` frames, evenly, the last one among them."""
    return np.ceil(np.arange(1, IMAGES + 1) * frames / IMAGES).astype(np.int64) - 1


def spaced(frames: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Keep ``IMAGES`` of the first ``count`` frames."""
    return frames[image_frames(count)]


def _perceptual(result: Replay, lpips: Lpips | None) -> NDArray[np.float64]:
    if lpips is None:
        return np.zeros((len(result.real), 0))
    return np.stack([lpips.distance(*pair) for pair in zip(result.real, result.imagined, strict=True)])


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


def _swapped_sums(
    swapped: NDArray[np.float64], true: NDArray[np.float64], steps: NDArray[np.int64], runs: Sequence[TrueRun]
) -> NDArray[np.float64]:
    count = swapped.shape[1]
    recorded = steps[None, :count] <= np.array([run.recorded for run in runs])[:, None]
    return np.stack([(swapped * recorded).sum(axis=1), (true[:, :count] * recorded).sum(axis=1)], axis=1)
