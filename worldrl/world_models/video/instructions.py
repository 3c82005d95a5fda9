"""Instructions of training windows: synonymous ones, unfulfilled ones, and windows without actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worldrl.data.windows.windows import WindowBatch


@dataclass(frozen=True)
class TaskInstructions:
    """``same`` maps a task to its instructions, ``other`` to those that its episodes certainly do not fulfil."""

    same: Mapping[str, Sequence[str]]
    other: Mapping[str, Sequence[str]]


def hide_rows(batch: WindowBatch, share: float, generator: torch.Generator) -> Tensor | None:
    """Draw the windows that lose their actions, bool ``[B]``; None when ``share`` is 0.

    Static clips and windows of failed episodes keep theirs: the model would learn to plan standstill or failure.
    """
    if not share:
        return None
    return (torch.rand(len(batch.task), generator=generator) < share) & ~batch.static.cpu() & batch.fulfilled.cpu()


def relabel(
    batch: WindowBatch,
    instructions: TaskInstructions,
    negative_share: float,
    generator: torch.Generator,
    hidden: Tensor | None = None,
) -> WindowBatch:
    """Give each window another instruction for its task, or, at ``negative_share``, one that it does not fulfil.

    A lifted red cube is no success for "pick up the green cylinder". ``hidden`` windows keep one that they fulfil.
    """
    draw = torch.rand(len(batch.task), 2, generator=generator).tolist()
    instruction, success = list(batch.instruction), batch.success.clone()
    for row, (task, (which, where)) in enumerate(zip(batch.task, draw, strict=True)):
        others = instructions.other.get(task, ())
        acting = hidden is None or not hidden[row]
        negative = acting and which < negative_share and bool(others)
        choices = others if negative else instructions.same.get(task, ()) or (instruction[row],)
        instruction[row] = choices[int(where * len(choices))]
        if negative:
            success[row] = False
    return replace(batch, instruction=instruction, success=success)
