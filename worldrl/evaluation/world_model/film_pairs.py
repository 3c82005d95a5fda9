"""What two films of the same events tell about the model that generated one of them: numbers of frames alone.

Both films begin with the frames that the model was given. The frames after them are compared one by one; beside the model
stands the simplest guess, the last given frame repeated. Pairs of films are the unit of all intervals.

Shapes legend: ``E`` pairs, ``T`` frames of a film, ``F`` measured frames (after the given ones), ``Y X`` pixels, ``S``
stored images, ``K`` clips, ``D`` features of a clip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, nearest
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import bootstrap
from worldrl.core.storage.arrays import ArrayRecord
from worldrl.evaluation.policy.ranking import as_success, outcome_lines
from worldrl.evaluation.world_model.battery import Drift, drift, outcome_numbers, psnr_of_mean, ratio_of_sums
from worldrl.evaluation.world_model.fvd import Fvd, fvd_report
from worldrl.evaluation.world_model.lpips import Lpips
from worldrl.evaluation.world_model.measures import image_frames
from worldrl.evaluation.world_model.rollout_error import pixel_error
from worldrl.evaluation.world_model.ssim import ssim

Frames = NDArray[np.uint8]
HEADER = ("film", "real", "generated")
UNCHANGED = 8
"""A pixel stands still where no colour ever leaves the last given frame by more than this, of 255: sensor noise."""
MEAN = partial(np.mean, axis=0)
STATISTICS = {"psnr": ("error", psnr_of_mean), "ssim": ("ssim", MEAN), "lpips": ("lpips", MEAN)}
"""Number of each frame → field of :class:`FilmMeasures`, statistic over pairs."""


@dataclass(frozen=True)
class FilmMeasures(ArrayRecord):
    """Raw numbers of ``E`` pairs; arrays of what was not computed have a size of 0 after ``E``."""

    name: NDArray[np.str_]  # of the pair ``[E]``
    # mean squared error ``[E, F]`` on the [0, 1] scale; ``still`` that of the last given frame repeated.
    error: NDArray[np.float64]
    still: NDArray[np.float64]
    ssim: NDArray[np.float64]  # ``[E, F]``, as ``lpips``
    lpips: NDArray[np.float64]
    # sums of absolute differences between neighbouring frames, and between neighbouring pixels, ``[E, 2]``:
    # generated, real.
    motion: NDArray[np.float64]
    detail: NDArray[np.float64]
    static: NDArray[np.float64]  # mean squared error ``[E]`` of pixels that stand still in the real film; NaN without
    real_clips: NDArray[np.float32]  # features ``[E, K, D]``; ``generated_clips`` of the generated frames
    generated_clips: NDArray[np.float32]
    real: Frames  # images uint8 ``[E, S, Y, X, 3]`` spread over the film; ``generated`` likewise
    generated: Frames


def measure_pair(
    name: str, real: Frames, generated: Frames, given: int, lpips: Lpips | None, fvd: Fvd | None
) -> FilmMeasures:
    """Measure two films ``[T, Y, X, 3]`` of which the first ``given`` frames are the model's own input."""
    start, real, generated = real[given - 1], real[given:], generated[given:]
    empty = np.zeros(0)
    shown = shown_frames(len(real))
    return FilmMeasures(
        name=np.array([name]),
        error=pixel_error(real[None], generated[None]),
        still=pixel_error(real[None], np.broadcast_to(start, (1, *real.shape))),
        ssim=ssim(real, generated)[None],
        lpips=(empty if lpips is None else lpips.distance(real, generated))[None],
        motion=_totals(start, generated, real, axes=(0,)),
        detail=_totals(start, generated, real, axes=(1, 2)),
        static=np.array([_static_error(start, real, generated)]),
        real_clips=(empty.astype(np.float32) if fvd is None else fvd.features(real))[None],
        generated_clips=(empty.astype(np.float32) if fvd is None else fvd.features(generated))[None],
        real=real[None, shown],
        generated=generated[None, shown],
    )


def shown_frames(frames: int) -> NDArray[np.int64]:
    """Choose the measured frames that filmstrips show, each once."""
    return np.unique(image_frames(frames))


def _totals(start: Frames, *films: Frames, axes: Sequence[int]) -> NDArray[np.float64]:
    """Sums ``[1, films]`` of absolute differences along axes of ``[T, Y, X, 3]``; time begins with ``start``."""
    found = []
    for film in films:
        numbers = np.concatenate([start[None], film]).astype(np.int16) if 0 in axes else film.astype(np.int16)
        found.append(sum(float(np.abs(np.diff(numbers, axis=axis)).sum()) for axis in axes))
    return np.array([found])


def _static_error(start: Frames, real: Frames, generated: Frames) -> float:
    """Mean squared error where the real film stands still; NaN where it nowhere does."""
    moved = np.abs(real.astype(np.int16) - start.astype(np.int16)).max(axis=(0, 3))
    still = moved <= UNCHANGED
    if not still.any():
        return float("nan")
    difference = (generated[:, still].astype(np.float32) - real[:, still].astype(np.float32)) / 255
    return float(np.square(difference).mean(dtype=np.float64))


def over_still(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """PSNR (dB) of the model minus that of the repeated frame: ``[E, ..., 2]`` (model, repeated) to ``[...]``."""
    found = psnr_of_mean(errors)
    return found[..., 0] - found[..., 1]


def reported(frames: int) -> list[int]:
    """Measured frames at which numbers are reported: 1, 2, 4 and so on, and the last."""
    return sorted({2**power for power in range(frames.bit_length()) if 2**power < frames} | {frames})


def drifts_of(measures: FilmMeasures, *, seed: int) -> dict[str, Drift]:
    """Each number at every measured frame, and PSNR of the repeated frame as ``still``."""
    step = 1 + np.arange(measures.error.shape[1])
    known = {name: (getattr(measures, source), statistic) for name, (source, statistic) in STATISTICS.items()}
    known["still"] = (measures.still, psnr_of_mean)
    return {
        name: drift(name, values, statistic, step, seed=seed)
        for name, (values, statistic) in known.items()
        if 0 not in values.shape
    }


def summarise(
    measures: FilmMeasures, drift: Mapping[str, Drift], outcomes: NDArray[np.bool_] | None, *, seed: int
) -> dict[str, Any]:
    """Metrics by name, as in ``result.json``; ``outcomes`` ``[E, 2]`` say whether real and generated films succeed."""

    def interval(name: str, values: NDArray[np.float64], statistic: Any) -> dict[str, Any]:
        return {**bootstrap(values, statistic, generator=numpy_stream(seed, "films", name))}

    errors = np.stack([measures.error, measures.still], axis=-1).mean(axis=1)
    known = measures.static[~np.isnan(measures.static)]
    return {
        "pairs": len(measures.name),
        "frames": measures.error.shape[1],
        **{f"{name}@{frame}": drift[name].at(frame) for name in drift for frame in reported(measures.error.shape[1])},
        "psnr": interval("psnr", errors[:, 0], psnr_of_mean),
        "psnr_over_still": interval("psnr_over_still", errors, over_still),
        "motion_ratio": interval("motion_ratio", measures.motion, ratio_of_sums),
        "detail_ratio": interval("detail_ratio", measures.detail, ratio_of_sums),
        **({"static_psnr": interval("static_psnr", known, psnr_of_mean)} if len(known) else {}),
        **(
            {} if 0 in measures.real_clips.shape else {"fvd": fvd_report(measures.real_clips, measures.generated_clips)}
        ),
        **({} if outcomes is None else outcome_numbers(outcomes[:, 1], outcomes[:, 0], seed=seed)),
        "drift": {name: curve.to_json() for name, curve in drift.items()},
    }


def read_film_outcomes(file: Path, names: Sequence[str]) -> NDArray[np.bool_]:
    """Read ``film,real,generated``: whether each pair's films show success, bool ``[E, 2]`` in the order of ``names``.

    ArtefactError for a file that cannot be read, a wrong line, or a pair without a line.
    """
    found: dict[str, tuple[bool, bool]] = {}
    for number, (film, real, generated) in outcome_lines(file, HEADER):
        where = f"outcomes: {file} line {number}"
        if film not in names:
            raise ArtefactError(f"{where}: film {film!r} is not measured here{nearest(film, names)}")
        if film in found:
            raise ArtefactError(f"{where}: film {film!r} stands in an earlier line, too; keep one")
        found[film] = as_success(real, where, "real"), as_success(generated, where, "generated")
    if lacking := [name for name in names if name not in found]:
        raise ArtefactError(f"outcomes: {file} has no line for film {lacking[0]!r}; give one for each of {len(names)}")
    return np.array([found[name] for name in names])
