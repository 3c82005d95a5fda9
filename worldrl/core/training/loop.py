"""The loop under every training: it resumes, saves checkpoints, holds Ctrl-C back and shows progress.

What happens at a position (step, epoch, iteration) depends on it and the state alone, so a kill changes no number.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch.optim import Optimizer

from worldrl.core.interfaces import Stateful
from worldrl.core.storage.checkpoint import load_checkpoint, save_checkpoint
from worldrl.core.storage.interrupts import interrupts
from worldrl.core.storage.log import MetricLog, Progress

Take = Callable[[int, Progress], int]
"""Does what is due at a position, and returns the next position; it may advance the progress itself, with a note."""
Due = Callable[[int, int], bool]
"""Maps a position and the last saved one to whether a checkpoint is due; one more is saved at the end."""


def every(count: int) -> Due:
    """Save at the multiples of ``count``."""
    return lambda position, saved: position % count == 0


@dataclass(frozen=True)
class Training:
    """All that a training changes, and where it is stored."""

    name: str  # series in the log
    folder: Path | None  # of the checkpoints; None trains without
    log: MetricLog | None = None  # lines from the position of a resume on are forgotten
    modules: Mapping[str, Stateful] = field(default_factory=dict[str, Stateful])
    optimizers: Mapping[str, Optimizer] = field(default_factory=dict[str, Optimizer])
    extra: Stateful | None = None  # further state, stored beside modules and optimizers
    first_line: int = 0  # the log's first line after position `p` is `p + first_line`

    def resume(self) -> tuple[int, tuple[str, ...]]:
        """Load the newest checkpoint; return its position and why newer ones were skipped."""
        found = None
        if self.folder is not None:
            found = load_checkpoint(self.folder, modules=self.modules, optimizers=self.optimizers)
        if found is not None and self.extra is not None:
            self.extra.load_state_dict(found.extra)
        position = 0 if found is None else found.step
        if self.log is not None:
            self.log.truncate(self.name, position + self.first_line)
        return position, () if found is None else found.skipped

    def save(self, position: int) -> None:
        """Write a checkpoint."""
        if self.log is not None:
            self.log.flush()  # first the log: it may hold more positions than the checkpoint, never fewer
        if self.folder is not None:
            extra = {} if self.extra is None else self.extra.state_dict()
            save_checkpoint(self.folder, position, modules=self.modules, optimizers=self.optimizers, extra=extra)

    def agreed(self, stop: bool) -> bool:
        """Whether to stop; several processes must agree."""
        return stop


@dataclass(frozen=True)
class Session:
    """What :func:`repeat` did, from position ``first`` to ``last`` in ``wall_s`` seconds; ``skipped`` checkpoints were damaged."""

    first: int
    last: int
    wall_s: float
    skipped: tuple[str, ...] = ()


def repeat(
    training: Training,
    take: Take,
    total: int,
    *,
    due: Due,
    unit: str = "step",
    uncut: str = "",
    over: Callable[[int], bool] | None = None,
    may_stop: Callable[[], bool] = lambda: True,
) -> Session:
    """Train until position ``total``, counted in ``unit``, resuming from the newest checkpoint.

    ``over`` replaces the end at ``total``; while ``may_stop`` is false nothing is saved and Ctrl-C waits. ArtefactError
    for damaged or other checkpoints; KeyboardInterrupt once the running ``uncut`` (default: ``unit``) is complete and
    saved.
    """
    ended: Callable[[int], bool] = over or total.__le__
    first, skipped = training.resume()
    began, position, saved = time.monotonic(), first, first
    with (
        Progress(training.name, total, start=first, unit=f"{unit}s") as progress,
        interrupts(uncut or unit) as interrupted,
    ):
        while not ended(position):
            position = take(position, progress)
            progress.advance(max(position - progress.count, 0))
            stop = training.agreed(may_stop() and interrupted())
            if stop or ended(position) or (may_stop() and due(position, saved)):
                training.save(position)
                saved = position
            if stop:
                raise KeyboardInterrupt
    return Session(first, position, time.monotonic() - began, skipped)
