"""Start records: an id each, and what is known of it.

Shapes legend: ``S`` start records, ``N`` of them in an iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from worldrl.core.errors import SettingError

FORGETTING = 0.9
"""λ: how much of what was known of a start survives its next visit, as the policy and the world change meanwhile (MoPPS)."""
RECENT = 0.2
"""α: the weight of a task's newest group in its learning gain (SEC)."""


@dataclass
class StartRecords:
    """Start records of a training: an id each, and the successes and failures that began there."""

    task: Sequence[str]  # of each.
    keyframe: Sequence[bool]  # whether each begins within an episode.
    p_keyframe: float = 0.0  # probability of a keyframe.
    counts: bool = False  # rollouts from here succeed or fail; without, no start has a rate of success.
    wins: Tensor = field(default_factory=lambda: torch.zeros(0))  # float64 ``[S]``.
    losses: Tensor = field(default_factory=lambda: torch.zeros(0))  # float64 ``[S]``.
    gain: dict[str, float] = field(default_factory=dict[str, float])  # learning gain of each task, from 0 to 1.

    def __post_init__(self) -> None:
        self.wins, self.losses = (torch.zeros(len(self.task), dtype=torch.float64) for _ in range(2))
        self.gain = dict.fromkeys(sorted(set(self.task)), 1.0)

    def posterior(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """α and β ``[n]`` of the Beta posterior of success at ``index``, from the prior (1, 1)."""
        if not self.counts:
            raise SettingError(
                "parts.starts: this sampler needs to know which rollouts succeed, and videos only have rewards; leave it out"
            )
        return 1 + self.wins[index], 1 + self.losses[index]

    def learn(self, starts: Tensor, wins: Tensor, count: Tensor) -> None:
        """Add ``wins`` of ``count`` rollouts that began at ``starts`` ``[N]``: k ← λ k + new, Q ← (1 - α) Q + α mean |A|.

        A group's mean |A| is that of its standardised outcomes, 2 √(p (1 - p)), with p its share of successes.
        """
        for known, new in ((self.wins, wins), (self.losses, count - wins)):
            known[starts] *= FORGETTING
            known.index_add_(0, starts, new.double())
        share = wins.double() / count
        for start, size in zip(starts, 2 * (share * (1 - share)).sqrt(), strict=True):
            self.gain[self.task[int(start)]] += RECENT * (float(size) - self.gain[self.task[int(start)]])

    def state_dict(self) -> dict[str, Any]:
        """What is known."""
        return {"wins": self.wins, "losses": self.losses, "gain": dict(self.gain)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore it."""
        self.wins, self.losses = (state_dict[name].clone() for name in ("wins", "losses"))
        self.gain |= state_dict.get("gain", {})  # checkpoints of earlier versions have none
