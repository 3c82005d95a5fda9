"""Outcome head: probability that the instruction has been fulfilled, given the whole imagined rollout so far.

Where the fingers close half beside an object, one sample shows it held and the next one not; a chunk later the image no
longer shows that uncertainty. This head is recurrent and reads the findings of success and gripper head. It learns from
episodes that the model imagined from their true actions, against the real outcomes, and so learns the model's errors.
"""

import re
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OutcomeHead(nn.Module):
    """A recurrent cell over findings of size ``width``, with a state (belief) of size ``hidden``, ``b``."""

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
        """Return logits ``[B, F]`` of findings ``[B, F, width]`` and belief ``[B, b]``, and the belief after them."""
        # In float32 also under autocast: a belief lasts a whole episode.
        with torch.autocast(findings.device.type, enabled=False):
            x = self.into(findings.float())
            recurrent, last = self.memory(x, belief[None])
            return self.out(x + recurrent).squeeze(-1), last[0]


class OutcomeEnsemble(nn.Module):
    """``ensemble_size`` (``J``) outcome heads that read the same findings, each with its own belief."""

    def __init__(self, width: int, hidden: int, ensemble_size: int):
        super().__init__()
        # The attribute's name is part of the keys of stored weights.
        self.jurors = nn.ModuleList([OutcomeHead(width, hidden) for _ in range(ensemble_size)])

    @property
    def members(self) -> list[OutcomeHead]:
        """The heads, typed."""
        return cast("list[OutcomeHead]", list(self.jurors))

    def blank(self, rows: int) -> Tensor:
        """Return the beliefs before the first frame ``[B, J b]``, side by side."""
        return torch.cat([member.blank(rows) for member in self.members], dim=-1)

    def forward(self, findings: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """Return each head's logits ``[J, B, F]`` and the beliefs after the frames."""
        parts = belief.chunk(len(self.jurors), dim=-1)
        results = [member(findings, part.contiguous()) for member, part in zip(self.members, parts, strict=True)]
        return torch.stack([logit for logit, _ in results]), torch.cat([after for _, after in results], dim=-1)


def ensemble_success(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over members of the probability ``[B, F]``, from logits ``[J, B, F]``."""
    probability = torch.sigmoid(logits)
    return probability.mean(dim=0), probability.std(dim=0, correction=0)


def named_as_ensemble(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a world model's weights; a single outcome head gets the names of an ensemble of one."""
    single = re.compile(r"^outcome\.(?=into\.|memory\.|out\.)")
    return {single.sub("outcome.jurors.0.", name): value for name, value in tensors.items()}


def outcome_loss(logit: Tensor, success: Tensor, valid: Tensor) -> Tensor:
    """Mean cross-entropy over valid frames; ``logit``, bool ``success`` and bool ``valid`` are ``[B, T]``."""
    loss = F.binary_cross_entropy_with_logits(logit, success.float(), reduction="none")
    return (loss * valid).sum() / valid.sum().clamp_min(1)
