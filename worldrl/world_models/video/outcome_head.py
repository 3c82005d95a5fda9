"""Outcome head: has the instruction been fulfilled, given the whole dream so far?

A dream commits itself. Where the fingers close half beside an object, one sample shows it held, the next one not, and
a chunk later the picture no longer tells how doubtful that was: the joint success head, which sees one chunk, is sure
of failures too. This head remembers. It reads frame by frame what the success head and the gripper head found, keeps a
belief, and learns from whole episodes that the model itself imagined from their true actions, against what really
came; so it also learns where this model errs. Its probability is the one that counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

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
            findings: ``[B, F, width]``, see :meth:`worldrl.world_models.video.model.VideoWorldModel.find`.
            belief: ``[B, b]`` before them.

        Returns:
            Logits ``[B, F]`` and the belief after them.
        """
        # In float32 also under autocast: a belief is carried over a whole episode.
        with torch.autocast(findings.device.type, enabled=False):
            seen = self.into(findings.float())
            remembered, last = self.memory(seen, belief[None])
            return self.out(seen + remembered).squeeze(-1), last[0]


class OutcomeEnsemble(nn.Module):
    """Several outcome heads that judge the same findings, each with a belief of its own.

    Args:
        width: width of one frame's findings.
        hidden: width ``b`` of each belief.
        ensemble_size: heads ``J``.
    """

    def __init__(self, width: int, hidden: int, ensemble_size: int):
        super().__init__()
        self.jurors = nn.ModuleList([OutcomeHead(width, hidden) for _ in range(ensemble_size)])

    @property
    def members(self) -> list[OutcomeHead]:
        """The jurors, typed."""
        return cast("list[OutcomeHead]", list(self.jurors))

    def blank(self, rows: int) -> Tensor:
        """Return the beliefs before the first frame ``[B, J b]``, side by side."""
        return torch.cat([member.blank(rows) for member in self.members], dim=-1)

    def forward(self, findings: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """Read some frames; return each juror's logits ``[J, B, F]`` and the beliefs after them."""
        parts = belief.chunk(len(self.jurors), dim=-1)
        heard = [member(findings, part.contiguous()) for member, part in zip(self.members, parts, strict=True)]
        return torch.stack([vote for vote, _ in heard]), torch.cat([after for _, after in heard], dim=-1)


def verdict(votes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the jury's mean probability ``[B, F]`` and the jurors' standard deviation; from logits ``[J, B, F]``."""
    probability = torch.sigmoid(votes)
    return probability.mean(dim=0), probability.std(dim=0, correction=0)


def named_as_ensemble(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a world model's weights with the names of a jury of one, where a folder holds a single outcome head."""
    single = re.compile(r"^outcome\.(?=into\.|memory\.|out\.)")
    return {single.sub("outcome.jurors.0.", name): value for name, value in tensors.items()}


def outcome_loss(logit: Tensor, success: Tensor, valid: Tensor) -> Tensor:
    """Mean cross-entropy over valid frames; ``logit``, bool ``success`` and bool ``valid`` are ``[B, T]``."""
    loss = F.binary_cross_entropy_with_logits(logit, success.float(), reduction="none")
    return (loss * valid).sum() / valid.sum().clamp_min(1)
