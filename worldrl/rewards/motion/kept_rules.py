"""Rules of signal temporal logic as rewards of generated videos: the robustness of the motion decoded from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.types import ImaginedVideos
from worldrl.rewards.motion.basis import check_frame_time, check_terms
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics, read_once
from worldrl.rewards.rules_file import Rules
from worldrl.rewards.temporal_logic import Rule

UNKNOWN_S = 1e-3
"""Time between frames (s) that stands for one nobody knows yet, so short that each window holds a frame."""


@dataclass(frozen=True)
class KeptRules:
    """Each rule's robustness at a video's first frame, as a :class:`~worldrl.core.interfaces.VideoReward`."""

    decoder: InverseDynamics
    rules: Sequence[Rule]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rules."""
        return tuple(rule.name for rule in self.rules)

    @torch.no_grad()
    def score(self, videos: ImaginedVideos) -> Tensor:
        """ρ of every rule ``[N, K]``, in the rule's own units; SettingError: other time steps than the decoder's."""
        check_frame_time(self.decoder.basis, videos.frame_s)
        decoded = read_once(self.decoder, videos)
        signals = {column.name: decoded[..., place] for place, column in enumerate(self.decoder.columns)}
        return torch.stack([rule.robustness(signals, videos.frame_s)[:, 0] for rule in self.rules], dim=1)


def rules_reward(folder: str, terms: Sequence[str], device: torch.device) -> KeptRules:
    """Make the reward ``rules`` from a file of rules; no terms select all of them.

    Equation: R = ρ(rule) of the decoded motion, below 0 where it is broken
    Paper: signal temporal logic (Donze and Maler 2010)

    Raises ArtefactError: no inverse dynamics; SettingError: no file, no such rule, or a rule on other signals.
    """
    if not folder:
        raise SettingError("folders.rules: this reward needs a file of rules, for example folders.rules=rules.yaml")
    found = Rules.read(Path(folder))
    if found.inverse_dynamics is None:
        raise SettingError(f"folders.rules: {folder} lacks inverse_dynamics, the folder of worldrl train-idm's model")
    decoder = InverseDynamics.load(found.inverse_dynamics, device)
    rules = {rule.name: rule for rule in found.rules}
    check_terms(terms, rules)
    chosen = [rules[name] for name in (terms or rules)]
    names, frame_s = [column.name for column in decoder.columns], decoder.basis.dt if decoder.basis else UNKNOWN_S
    for rule in chosen:
        rule.check(names, frame_s=frame_s)
    return KeptRules(decoder, chosen)
