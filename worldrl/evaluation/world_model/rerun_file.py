"""Real and imagined rollouts of the same actions as a recording of rerun (extra ``rerun``), on the timeline ``step``.

Entities of each episode: ``episode-00/real`` and ``/imagined`` (images), ``/action``, ``/state``, ``/success_probability``,
and ``/imagined_state`` where the world model predicts it. ``step`` counts control steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.extras import require
from worldrl.core.storage.atomic import write_file
from worldrl.core.types import Episode
from worldrl.evaluation.world_model.rollout_error import Replay

EXTRA = "rerun"


def write_recording(
    file: Path, episodes: Sequence[Episode], titles: Sequence[str], actions: NDArray[np.float32], result: Replay
) -> None:
    """Write E ``episodes``, the ``actions`` ``[E, T, A]`` that were imagined, and what the world model gave for them."""
    recording = require("rerun", extra=EXTRA).RecordingStream("worldrl")
    memory = recording.memory_recording()
    for number, (episode, title) in enumerate(zip(episodes, titles, strict=True)):
        _Log(recording, f"episode-{number:02}").episode(episode, title, actions[number], result, number)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, memory.drain_as_bytes())


class _Log:
    """One episode's entities, below ``place``."""

    def __init__(self, recording: Any, place: str) -> None:
        self.rerun, self.recording, self.place = require("rerun", extra=EXTRA), recording, place

    def episode(self, episode: Episode, title: str, action: NDArray[np.float32], result: Replay, row: int) -> None:
        self.recording.log(self.place, self.rerun.TextDocument(f"{title}: {episode.instruction}"), static=True)
        stride = result.frame_stride
        frames = [stride * (1 + t) for t in range(result.real.shape[1])]
        real = int(result.valid[row].sum())
        self.images("real", frames[:real], result.real[row])
        self.images("imagined", frames, result.imagined[row])
        self.numbers("action", range(len(action)), action)
        self.numbers("state", range(len(episode.state)), episode.state)
        self.numbers("success_probability", frames, result.probability[row])
        if result.state is not None:
            self.numbers("imagined_state", frames, result.state[1][row])

    def images(self, name: str, steps: Sequence[int], images: NDArray[np.uint8]) -> None:
        for step, image in zip(steps, images, strict=False):  # real ones end with their episode
            self._log(name, step, self.rerun.Image(image))

    def numbers(self, name: str, steps: Sequence[int], rows: NDArray[np.float32]) -> None:
        for step, row in zip(steps, rows, strict=True):
            self._log(name, step, self.rerun.Scalars(row))

    def _log(self, name: str, step: int, value: Any) -> None:
        self.recording.set_time("step", sequence=step)
        self.recording.log(f"{self.place}/{name}", value)
