"""What the windows of a training are told: sentences that mean the same, sentences that do not, and no actions at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worldrl.data.windows.windows import WindowBatch


@dataclass(frozen=True)
class TaskInstructions:
    """What can be said about each task.

    Attributes:
        same: task to sentences that mean it.
        other: task to sentences that its episodes certainly do not fulfil.
    """

    same: Mapping[str, Sequence[str]]
    other: Mapping[str, Sequence[str]]


def hide_rows(batch: WindowBatch, share: float, generator: torch.Generator) -> Tensor | None:
    """Draw the windows that lose their actions, bool ``[B]``; None where none does.

    A static clip keeps its action: without, it would teach that nobody does anything about the instruction. So does a window of an
    episode that failed: without, it would teach to plan failures.
    """
    if not share:
        return None
    return (torch.rand(len(batch.task), generator=generator) < share) & ~batch.static.cpu() & batch.fulfilled.cpu()


def relabel(
    batch: WindowBatch,
    sentences: TaskInstructions,
    negative_share: float,
    generator: torch.Generator,
    hidden: Tensor | None = None,
) -> WindowBatch:
    """Give each window another sentence for its task, or, at ``negative_share``, one it does not fulfil.

    The success head must read the instruction: a lifted red cube is no success for "pick up the green cylinder". A window
    without actions (``hidden``) is to show what it was told, and keeps a sentence that it fulfils.
    """
    draw = torch.rand(len(batch.task), 2, generator=generator).tolist()
    instruction, success = list(batch.instruction), batch.success.clone()
    for row, (task, (which, where)) in enumerate(zip(batch.task, draw, strict=True)):
        others = sentences.other.get(task, ())
        acting = hidden is None or not hidden[row]
        negative = acting and which < negative_share and bool(others)
        choices = others if negative else sentences.same.get(task, ()) or (instruction[row],)
        instruction[row] = choices[int(where * len(choices))]
        if negative:
            success[row] = False
    return replace(batch, instruction=instruction, success=success)
