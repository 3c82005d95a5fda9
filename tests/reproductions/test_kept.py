"""Unit under test: ``worldrl.reproductions.resume_state``, in the two stages whose loops are their own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worldrl.methods.offline.neubay.recurrent_q import RecurrentQAgent
from worldrl.methods.offline.sac import Sac
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.edge_of_reach import plane_agents as edge_of_reach_2d
from worldrl.reproductions.neubay import bandit as neubay_bandit

PLANE = replace(edge_of_reach_2d.SETTINGS["tiny"], updates=6, evaluations=3)
BANDIT = replace(neubay_bandit.SETTINGS["tiny"], updates=24)  # three generations of eight


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize(
    ("effect", "settings", "method", "learner", "killed_at", "last_kept"),
    [
        (edge_of_reach_2d, PLANE, "oracle-patch", Sac, 5, 4),
        (neubay_bandit, BANDIT, "penalised", RecurrentQAgent, 20, 16),
    ],
    ids=["edge-of-reach-2d", "neubay-bandit"],
)
def test_killed_stage_resumes_bit_for_bit(
    effect: Any,
    settings: Any,
    method: str,
    learner: Any,
    killed_at: int,
    last_kept: int,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    whole = effect.run(settings, Cell(method, 3), tmp_path / "whole")
    update, taken = learner.update, []

    def counting(agent: Any, *args: Any, **named: Any) -> Any:
        if len(taken) == killed_at:
            raise Killed
        taken.append(1)
        return update(agent, *args, **named)

    monkeypatch.setattr(learner, "update", counting)
    with pytest.raises(Killed):
        effect.run(settings, Cell(method, 3), tmp_path / "stage")
    taken.clear()
    assert effect.run(settings, Cell(method, 3), tmp_path / "stage") == whole
    assert len(taken) == settings.updates - last_kept  # those of the checkpoint were not taken again
    taken.clear()
    assert effect.run(settings, Cell(method, 3), tmp_path / "stage") == whole
    assert not taken
