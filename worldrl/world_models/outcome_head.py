"""Outcome head: has the instruction been fulfilled, given the whole dream so far?

A dream commits itself. Where the fingers close half beside an object, one sample shows it held, the next one not, and
a chunk later the picture no longer tells how doubtful that was: the joint success head, which sees one chunk, is sure
of failures too. This head remembers. It reads frame by frame what the success head and the gripper head found, keeps a
belief, and learns from whole episodes that the model itself imagined from their true actions, against what really
came; so it also learns where this model errs. Its probability is the one that counts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OutcomeHead(nn.Module):
    """A recurrent cell over findings.

    Args:
        width: width of one frame's findings.
        hidden: width ``b`` of the belief.
    """

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.hidden = hidden
        self.into = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.memory = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def blank(self, rows: int) -> Tensor:
        """Return the belief before the first frame ``[B, b]``."""
        return self.out.weight.new_zeros(rows, self.hidden)

    def forward(self, findings: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """Read some frames.

        Args:
            findings: ``[B, F, width]``, see :meth:`worldrl.world_models.video.VideoWorldModel.find`.
            belief: ``[B, b]`` before them.

        Returns:
            Logits ``[B, F]`` and the belief after them.
        """
        # In float32 also under autocast: a belief is carried over a whole episode.
        with torch.autocast(findings.device.type, enabled=False):
            seen = self.into(findings.float())
            remembered, last = self.memory(seen, belief[None])
            return self.out(seen + remembered).squeeze(-1), last[0]


def outcome_loss(logit: Tensor, success: Tensor, valid: Tensor) -> Tensor:
    """Mean cross-entropy over valid frames; ``logit``, bool ``success`` and bool ``valid`` are ``[B, T]``."""
    loss = F.binary_cross_entropy_with_logits(logit, success.float(), reduction="none")
    return (loss * valid).sum() / valid.sum().clamp_min(1)
