"""A learned rule of termination. Units under test: ``fit_termination`` and ``TerminationHead``."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.transitions import Transitions
from worldrl.world_models.state.termination_head import TerminationHead, TerminationTraining, fit_termination


def falls(count: int, seed: int) -> Transitions:
    """Random walks that end below -1.5: about one step in fifteen."""
    generator = stream(seed, "falls")
    obs, change = torch.randn(2, count, 2, generator=generator)
    next_obs, no = obs + 0.3 * change, torch.zeros(count, dtype=torch.bool)
    return Transitions(obs, torch.zeros(count, 1), no.float(), next_obs, next_obs[:, 0] < -1.5, no)


def test_it_learns_the_rule_without_crying_wolf(tmp_path: Path) -> None:
    head = fit_termination("ends", falls(3000, 0), TerminationTraining(width=32, steps=600, learning_rate=2e-2), seed=0)
    fresh = falls(4000, 1)
    told = head(fresh.obs, fresh.action, fresh.next_obs)
    assert told.dtype == torch.bool
    hits, share = int((told & fresh.terminated).sum()), float(fresh.terminated.float().mean())
    assert 0.03 < share < 0.12
    assert hits / int(fresh.terminated.sum()) > 0.9
    assert hits / int(told.sum()) > 0.9  # without the prior taken off, rare ends are seen everywhere
    head.save(tmp_path / "head")
    again = TerminationHead.load(tmp_path / "head")
    assert torch.equal(again(fresh.obs, fresh.action, fresh.next_obs), told)


def test_a_dataset_without_terminals_is_refused() -> None:
    data = falls(50, 0)
    with pytest.raises(SettingError, match=r"0 of 50 rows .*termination=never"):
        fit_termination("ends", replace(data, terminated=torch.zeros(50, dtype=torch.bool)), seed=0)
