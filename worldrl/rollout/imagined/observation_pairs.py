"""Recorded observations beside imagined ones of the same moments: the world model follows the recorded actions.

Each episode is imagined twice, from its beginning and from somewhere in its middle, and gives a pair after each chunk.

Shapes legend: ``M`` pairs, ``B`` rows, ``L`` control steps per chunk, ``A`` numbers of an action.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import WorldModel
from worldrl.core.observation import COMMAND, IMAGE, require_named
from worldrl.core.rng import numpy_stream, stream
from worldrl.core.storage.log import Progress
from worldrl.core.types import Episode
from worldrl.policies.samples import Samples, make_samples
from worldrl.rollout.imagined.recent import Recent, after_chunk, recorded
from worldrl.rollout.imagined.reset_store import record_at

BATCH = 64
"""Episodes that are imagined at once."""


@dataclass(frozen=True)
class ObservationPairs:
    """The same ``M`` moments, as the robot's cameras showed them and as the world model does."""

    recorded: Samples
    imagined: Samples

    def __len__(self) -> int:
        return len(self.recorded)

    def select(self, index: torch.Tensor) -> "ObservationPairs":
        """Take the pairs of ``index``."""
        return ObservationPairs(self.recorded.select(index), self.imagined.select(index))


def observation_pairs(
    model: WorldModel, episodes: Sequence[Episode], more: Sequence[str], *, count: int, seed: int, series: str
) -> ObservationPairs:
    """Imagine ``count`` random episodes, or all, with their recorded actions; ``more`` names further observations.

    Raises SettingError: the model does not imagine these, or no episode is longer than a chunk.
    """
    require_named(more, model.more)
    long = [episode for episode in episodes if len(episode) > model.chunk_length]
    if not long:
        raise SettingError(
            f"consistency: no episode has more than the {model.chunk_length} steps of a chunk; record longer ones"
        )
    chosen = [long[int(i)] for i in numpy_stream(seed, "pairs").permutation(len(long))[:count]]
    chosen.sort(key=len)
    parts: list[ObservationPairs] = []
    with Progress(f"{series}: imagining", len(chosen), unit="episodes") as progress:
        for first in range(0, len(chosen), BATCH):
            alike = chosen[first : first + BATCH]
            draw = numpy_stream(seed, "pairs", first)
            middle = draw.integers([len(episode) - model.chunk_length for episode in alike])
            for number, start in enumerate((np.zeros(len(alike), np.int64), middle)):
                parts += _imagined_pairs(model, alike, start, more, (seed, "pairs", first, number))
            progress.advance(len(alike))
    return ObservationPairs(*(Samples.join([getattr(p, name) for p in parts]) for name in ("recorded", "imagined")))


def _imagined_pairs(
    model: Any, episodes: Sequence[Episode], start: NDArray[np.int64], more: Sequence[str], draws: tuple[Any, ...]
) -> Iterator[ObservationPairs]:
    """Imagine episodes from the frames ``start`` ``[B]``; yield the pairs after each chunk but those beyond an end."""
    length, seed = model.chunk_length, draws[0]
    layout = {"memory_frames": model.memory_frames, "frame_stride": model.frame_stride, "more": model.more}
    records = [record_at(e, int(t), **layout, source="recorded") for e, t in zip(episodes, start, strict=True)]
    rows = [make_samples([episode], length, more) for episode in episodes]
    chunks = max(len(e) - int(t) for e, t in zip(episodes, start, strict=True)) // length
    action = torch.from_numpy(
        np.stack([_held(e, int(t), chunks * length) for e, t in zip(episodes, start, strict=True)])
    )
    state, recent = model.start(records), recorded(records, model.more, 1)
    for chunk in range(chunks):
        noise = [stream(seed, *draws[1:], row, chunk) for row in range(len(episodes))]
        state, imagined = model.imagine(state, action[:, chunk * length : (chunk + 1) * length], generators=noise)
        recent = after_chunk(recent, model, state, imagined)
        at = start + (chunk + 1) * length
        for row in np.flatnonzero(at < [len(episode) for episode in episodes]):
            sample = rows[row].select(torch.tensor([int(at[row])]))
            yield ObservationPairs(sample, _seen(sample, recent, int(row)))


def _seen(sample: Samples, recent: Recent, row: int) -> Samples:
    """Return a sample with what was imagined of its moment."""
    newest = {name: value[row : row + 1, -1] for name, value in recent.items()}
    return replace(
        sample, image=newest[IMAGE], command=newest[COMMAND], more={name: newest[name] for name in sample.more}
    )


def _held(episode: Episode, start: int, steps: int) -> NDArray[np.float32]:
    """Actions from ``start`` on ``[steps, A]``; beyond the end they hold the last command."""
    action = episode.action[start : start + steps]
    still = np.tile(episode.actions.hold(episode.action[-1]), (steps - len(action), 1))
    return np.concatenate([action, still])
