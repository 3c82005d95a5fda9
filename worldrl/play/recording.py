"""A drive as two episodes: what MuJoCo measured and what the world model imagined, in datasets that stay apart.

A dataset has one frame for each control step. Between two imagined frames the earlier one is repeated. The world model
imagines no contact, and often no measured state: zeros stand for them, and ``meta`` names them.

Shapes legend: ``T`` control steps, ``L`` of a chunk, ``V Y X`` cameras and pixels, ``S`` measured numbers.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.play.session import Session, Worlds
from worldrl.rollout.real.embedded import EMBEDDED_SUITE
from worldrl.rollout.real.rows import Recording

REAL, IMAGINED = "real", "imagined"
"""Folders of the two datasets."""


class Recorder:
    """Writes drives below ``folder``, of any session; ``world_model`` is its hash, stored with each episode."""

    def __init__(self, folder: Path, worlds: Worlds, world_model: str) -> None:
        self.folder, self._worlds, self._world_model = folder, worlds, world_model
        self._lock, self.saved = threading.Lock(), 0

    def save(self, session: Session) -> int:
        """Write a drive into both datasets, and return its control steps.

        A drive that is already in a dataset is not written there again, so that a save which failed in between can be
        repeated. Raises SettingError (nothing was driven). Raises ArtefactError (the disk refuses).
        """
        if not session.chunks:
            raise SettingError("save: nothing was driven yet")
        note = {"drive": drive_digest(session), "by": [chunk.by for chunk in session.chunks]}
        imagined = {**note, "world_model": self._world_model}
        with self._lock:
            self._add(REAL, EMBEDDED_SUITE, real_episode(session, note))
            self._add(IMAGINED, IMAGINED, imagined_episode(session, imagined))
            self.saved += 1
        return sum(len(chunk.action) for chunk in session.chunks)

    def _add(self, name: str, suite: str, episode: Episode) -> None:
        robot, size = self._worlds.robot, self._worlds.options.image_size
        with LeRobotWriter(
            self.folder / name,
            fps=robot.control_hz,
            cameras=self._worlds.options.cameras,
            image_size=(size, size),
            embodiment=robot,
            suite=suite,
        ) as writer:
            if episode.meta["drive"] not in [record.meta["drive"] for record in writer.records]:
                writer.add_episode(episode)


def drive_digest(session: Session) -> str:
    """Identify a drive by its start and its actions."""
    digest = hashlib.blake2b(repr(session.begun.spec).encode(), digest_size=8)
    for chunk in session.chunks:
        digest.update(chunk.action.tobytes())
    return digest.hexdigest()


def real_episode(session: Session, note: Mapping[str, Any]) -> Episode:
    """Return what MuJoCo measured."""
    options, start = session.worlds.options, session.begun
    recording = Recording(start.spec, cameras=options.cameras, keep=True, hold_steps=0, actions=options.actions)
    recording.observe(start.observed)
    for chunk in session.chunks:
        for action, observed in zip(chunk.action, chunk.observed, strict=True):
            recording.step(action, observed)
    episode = recording.episode(start.record.instruction)
    return replace(episode, meta={**episode.meta, **note})


def imagined_episode(session: Session, note: Mapping[str, Any]) -> Episode:
    """Return what the world model imagined; its reward is the imagined success."""
    chunks, record, robot = session.chunks, session.begun.record, session.worlds.robot
    steps = len(chunks) * session.worlds.model.chunk_length
    sheets = _each_step(record.reference, [chunk.sheets for chunk in chunks], session)
    frames = np.stack(np.split(sheets, len(session.worlds.images), axis=1), axis=1)  # [T+1, V, Y, X, 3]
    states = [chunk.imagined.state for chunk in chunks if chunk.imagined.state is not None]
    state = np.zeros((steps + 1, len(robot.state_names)), np.float32)
    if record.state is not None:
        state = _each_step(record.state, [predicted[0].float().cpu().numpy() for predicted in states], session)
    first = session.first_success()
    reward = np.zeros(steps, np.float32)
    reward[steps if first is None else first - 1 :] = 1
    return Episode(
        frames=frames,
        state=state,
        command=np.concatenate([record.command[None], *(c.imagined.command[0].cpu().numpy() for c in chunks)]),
        action=np.concatenate([chunk.action for chunk in chunks]),
        reward=reward,
        contact=np.zeros(steps + 1, np.bool_),
        terminated=first is not None,
        truncated=first is None,
        instruction=record.instruction,
        task=record.task,
        cameras=session.worlds.options.cameras,
        meta={
            "source": "play, imagined",
            "imagined": True,
            "start": record.source,
            "frame_stride": session.worlds.model.frame_stride,
            "zeros": ["contact"] if record.state is not None else ["contact", "state"],
            **note,
        },
        actions=robot.actions,
    )


def _each_step(first: NDArray[Any], frames: Sequence[NDArray[Any]], session: Session) -> NDArray[Any]:
    """Return the newest of the model's frames at each control step ``[T+1, ...]``."""
    shown = np.concatenate([first[None], *frames])
    step = np.arange(len(session.chunks) * session.worlds.model.chunk_length + 1)
    return shown[step // session.worlds.model.frame_stride]
