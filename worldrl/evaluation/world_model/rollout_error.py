"""Errors of a world model on unseen episodes.

Everything is closed loop: the model gets the first frame and the true actions, and continues from its own frames. Pixel error hardly
measures a nine-pixel cube, so outcomes are compared as well: is success imagined exactly where the same actions really succeed?

Shapes legend: ``E`` episodes, ``T`` predicted frames, ``K`` chunks, ``L`` control steps per chunk, ``A`` numbers of an action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from worldrl.core.observation import IMAGE, STATE, images_among
from worldrl.core.rng import stream
from worldrl.core.statistics.intervals import Rate, wilson
from worldrl.core.types import Episode, first_frames
from worldrl.rewards.success import SuccessRule, precision_recall, success_step
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.world_models.loading import AnyVideoModel
from worldrl.world_models.video.following import given_actions, roll_forward

HORIZONS = (8, 32, 64)
"""Control steps at which the closed-loop error is reported."""


@dataclass(frozen=True)
class Replay:
    """True and imagined frames of the same actions, in the main camera."""

    # uint8 ``[E, T, Y, X, 3]``, as ``imagined``; frames beyond an episode's end repeat its last.
    real: NDArray[np.uint8]
    imagined: NDArray[np.uint8]
    valid: NDArray[np.bool_]  # bool ``[E, T]``, the real frame exists.
    probability: NDArray[np.float32]  # float32 ``[E, T]`` of success.
    frame_stride: int  # control steps between frames.
    # real and imagined frames of the model's other cameras, by name.
    further: Mapping[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = field(default_factory=dict)
    # real and imagined measured numbers float32 ``[E, T, S]``, see :func:`measured_names`; None where there are none.
    state: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    state_names: tuple[str, ...] = ()  # of these numbers.


def whole_chunks(steps: int, length: int) -> int:
    """Round control steps up to whole chunks of ``length``."""
    return -(-steps // length) * length


def padded_actions(episode: Episode, steps: int) -> NDArray[np.float32]:
    """Actions of an episode cut or extended to ``steps`` by holding the last command."""
    still = np.tile(episode.actions.hold(episode.action[-1]), (max(steps - len(episode), 0), 1))
    return np.concatenate([episode.action[:steps], still])


def replay(
    model: AnyVideoModel,
    episodes: Sequence[Episode],
    actions: NDArray[np.float32],
    *,
    seed: int,
    batch: int = 64,
    row: int = 0,
    limited: bool = True,
) -> Replay:
    """Imagine ``actions`` ``[E, K·L, A]`` from each episode's first frame, ``batch`` episodes at a time.

    Where ``limited``, nothing is imagined beyond the longest of a task's episodes: frames repeat there, and the probability is 0.
    ``row`` is the first episode's number in a longer list, so that each part of the list has its own noise.
    """
    frames = actions.shape[1] // model.frame_stride
    limits = np.full(len(episodes), actions.shape[1])
    if limited:
        limits = np.minimum(task_limits(episodes, model.chunk_length), limits)
    imagined, probability, state = _replayed(model, episodes, actions, limits, seed, batch=batch, row=row)
    step = model.frame_stride * (1 + np.arange(frames))
    last = np.array([len(episode) for episode in episodes])
    index = np.minimum(step[None], last[:, None])
    images = images_among(model.more)
    real = np.stack([episode.sheet(images)[row] for episode, row in zip(episodes, index, strict=True)])
    views = {
        name: (true, shown)
        for name, true, shown in zip(
            images, *(np.split(sheets, len(images), axis=-3) for sheets in (real, imagined)), strict=True
        )
    }
    valid = step[None] <= last[:, None]
    main = views.pop(IMAGE)
    if not (names := measured_names(model)):
        return Replay(*main, valid, probability, model.frame_stride, views)
    source = "state" if STATE in model.more else "command"
    measured = np.stack([getattr(e, source)[row, : len(names)] for e, row in zip(episodes, index, strict=True)])
    return Replay(*main, valid, probability, model.frame_stride, views, (measured, state), names)


def measured_names(model: AnyVideoModel) -> tuple[str, ...]:
    """Names of the measured numbers that are compared: the state where it is predicted, else a command's measured pose."""
    robot = model.embodiment
    return robot.state_names if STATE in model.more else robot.command_names[: robot.measured_pose]


def replayed_success(
    model: AnyVideoModel, episodes: Sequence[Episode], actions: NDArray[np.float32], *, seed: int, batch: int = 64
) -> NDArray[np.float32]:
    """Probability of success ``[E, T]`` as :func:`replay` finds it; no image is decoded."""
    limits = np.minimum(task_limits(episodes, model.chunk_length), actions.shape[1])
    return _replayed(model, episodes, actions, limits, seed, batch=batch, decoded=False)[1]


def _replayed(
    model: AnyVideoModel,
    episodes: Sequence[Episode],
    actions: NDArray[np.float32],
    limits: NDArray[np.int64],
    seed: int,
    *,
    batch: int,
    row: int = 0,
    decoded: bool = True,
) -> list[NDArray[Any]]:
    """Images, probabilities and state ``[E, T, ...]``; episodes of like ``limits`` (control steps) are imagined together."""
    frames, order = actions.shape[1] // model.frame_stride, np.argsort(limits, kind="stable")
    whole = list[NDArray[Any]]()
    for rows in np.split(order, range(batch, len(order), batch)):
        chosen, steps = [episodes[i] for i in rows], int(limits[rows].max())
        numbers = [row + int(i) for i in rows]
        found = _replay_rows(model, chosen, actions[rows, :steps], seed, numbers, decoded=decoded)
        parts = _to_length(found, limits[rows] // model.frame_stride, frames)
        whole = whole or [np.empty((len(episodes), *part.shape[1:]), part.dtype) for part in parts]
        for every, part in zip(whole, parts, strict=True):
            every[rows] = part
    return whole


def task_limits(episodes: Sequence[Episode], length: int) -> NDArray[np.int64]:
    """Control steps of the longest episode of each episode's task ``[E]``, in whole chunks."""
    longest: dict[str, int] = {}
    for episode in episodes:
        longest[episode.task] = max(longest.get(episode.task, 0), len(episode))
    return np.array([whole_chunks(longest[episode.task], length) for episode in episodes])


def _to_length(found: list[NDArray[Any]], limits: NDArray[np.int64], frames: int) -> list[NDArray[Any]]:
    """Bring images, probabilities and state ``[E, t, ...]`` to ``frames``; beyond a row's limit they repeat, the probability is 0."""
    inside, row = np.arange(frames)[None] < limits[:, None], np.arange(len(limits))[:, None]
    index = np.where(inside, np.arange(frames), limits[:, None] - 1)
    images, probability, state = found
    shown, measured = (part[row, index] if part.shape[1] else part for part in (images, state))
    return [shown, np.where(inside, probability[row, index], 0), measured]


def _replay_rows(
    model: AnyVideoModel,
    episodes: Sequence[Episode],
    actions: NDArray[np.float32],
    seed: int,
    numbers: Sequence[int],
    *,
    decoded: bool,
) -> list[NDArray[Any]]:
    """Images, probabilities and state of one batch; no images where they are not ``decoded``."""
    records = [
        record_at(
            e, 0, memory_frames=model.memory_frames, frame_stride=model.frame_stride, source="replay", more=model.more
        )
        for e in episodes
    ]
    state: Any = model.start(records)
    first = first_frames(records)
    frames, probabilities, states = [], [], []
    act = given_actions(torch.from_numpy(actions).to(model.device), model.chunk_length)

    def noise(chunk: int) -> list[torch.Generator]:
        return [stream(seed, "replay", number, chunk) for number in numbers]

    chunks = actions.shape[1] // model.chunk_length
    for _, imagined in roll_forward(model, state, chunks, act, noise):
        shown = model.decode(imagined.latent, first).cpu() if decoded else torch.empty(len(episodes), 0)
        frames.append(shown.numpy())
        probabilities.append(imagined.success_prob.cpu().numpy())
        pose = imagined.command[:, model.frame_stride - 1 :: model.frame_stride, : model.embodiment.measured_pose]
        measured = pose if imagined.state is None else imagined.state
        states.append(measured.float().cpu().numpy())
    return [np.concatenate(part, axis=1) for part in (frames, probabilities, states)]


def squared_error(result: Replay) -> NDArray[np.float64]:
    """Mean squared pixel error ``[E, T]`` on the [0, 1] scale, in the main camera."""
    return pixel_error(result.real, result.imagined)


def pixel_error(real: NDArray[np.uint8], imagined: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Mean squared error ``[E, T]`` of images ``[E, T, Y, X, 3]`` on the [0, 1] scale."""
    # Episode by episode: as float32 all of them are four times as large.
    differences = ((i.astype(np.float32) - r.astype(np.float32)) / 255 for i, r in zip(imagined, real, strict=True))
    return np.stack([np.square(difference).mean(axis=(1, 2, 3), dtype=np.float64) for difference in differences])


def decibels(error: ArrayLike) -> NDArray[np.float64]:
    """Peak signal-to-noise ratio in dB of mean squared errors on the [0, 1] scale; 100 dB at most."""
    return -10 * np.log10(np.maximum(error, 1e-10))


def psnr(error: float) -> float:
    """Peak signal-to-noise ratio in dB of one mean squared error on the [0, 1] scale."""
    return float(decibels(error))


def closed_loop_psnr(result: Replay, horizons: Sequence[int] = HORIZONS) -> dict[str, float]:
    """PSNR of the frame at each horizon (control steps), over the episodes that last that long."""
    error, values = squared_error(result), {}
    for horizon in horizons:
        frame = horizon // result.frame_stride - 1
        if frame < error.shape[1] and result.valid[:, frame].any():
            values[f"closed_loop.psnr@{horizon}"] = psnr(error[result.valid[:, frame], frame].mean())
    return values


def action_swap_ratio(
    model: AnyVideoModel, episodes: Sequence[Episode], steps: int, *, seed: int, true: Replay | None = None
) -> float:
    """Closed-loop error under the actions of *another* episode over the error under the true ones.

    1 for a model that ignores its actions; NaN for a single episode. ``true`` is an existing replay of the true actions with this ``seed``.
    """
    if len(episodes) < 2:
        return float("nan")
    actions = np.stack([padded_actions(episode, steps) for episode in episodes])
    true = true or replay(model, episodes, actions, seed=seed)
    swapped = replay(model, episodes, np.roll(actions, 1, axis=0), seed=seed)
    return float(squared_error(swapped)[true.valid].mean() / squared_error(true)[true.valid].mean())


def static_error(
    model: AnyVideoModel, episodes: Sequence[Episode], steps: int, *, seed: int, row: int = 0
) -> NDArray[np.float64]:
    """Mean squared error ``[E]`` between the first frame and the imagined frame after ``steps`` of holding still."""
    still = np.stack([np.tile(episode.null_action, (steps, 1)) for episode in episodes])
    result = replay(model, episodes, still, seed=seed, row=row, limited=False)
    first = np.stack([episode.main_view[0] for episode in episodes]).astype(np.float32)
    difference = (result.imagined[:, -1].astype(np.float32) - first) / 255
    return np.square(difference).mean(axis=(1, 2, 3), dtype=np.float64)


def static_psnr(model: AnyVideoModel, episodes: Sequence[Episode], steps: int, *, seed: int) -> float:
    """PSNR of :func:`static_error` over all episodes."""
    return psnr(float(static_error(model, episodes, steps, seed=seed).mean()))


def success_steps(result: Replay, rule: SuccessRule) -> NDArray[np.int64]:
    """Control step of the first imagined success ``[E]``, -1 where there is none."""
    return success_step(torch.from_numpy(result.probability), rule, result.frame_stride)


def outcomes(result: Replay, rule: SuccessRule) -> NDArray[np.bool_]:
    """Whether each row is an imagined success."""
    return success_steps(result, rule) >= 0


def outcome_report(predicted: NDArray[np.bool_], actual: NDArray[np.bool_]) -> dict[str, Rate | None]:
    """Precision, recall and alignment of imagined outcomes as Wilson rates; None where nothing can be counted."""
    n = precision_recall(predicted, actual)
    counts = {
        "precision": (n["tp"], n["tp"] + n["fp"]),
        "recall": (n["tp"], n["tp"] + n["fn"]),
        "outcome_alignment": (n["tp"] + n["tn"], sum(n.values())),
        "false_success_rate": (n["fp"], n["fp"] + n["tn"]),
    }
    return {name: wilson(k, total) if total else None for name, (k, total) in counts.items()}


def f1_score(pairs: NDArray[np.float64]) -> float:
    """Harmonic mean of precision and recall of pairs (imagined, real), each 0 or 1, ``[E, 2]``; 0 where all are 0."""
    imagined, real = pairs.T > 0
    return float(2 * (imagined & real).sum() / max(imagined.sum() + real.sum(), 1))
