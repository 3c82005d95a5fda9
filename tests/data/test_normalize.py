"""Action statistics: closed forms, degenerate dimensions, refusal without them."""

import json

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.normalize import ActionStatistics, denormalise, normalise


@pytest.fixture
def statistics(make_episode):
    """Dimension 0 runs over 0..1, 1 never moves, 6 closes in one step of 401; the rest is noise."""
    action = np.random.default_rng(0).uniform(-0.5, 0.5, (401, 7)).astype(np.float32)
    action[:, 0] = np.arange(401) / 400
    action[:, 1] = 0.25
    action[:, 6] = -1
    action[200, 6] = 1
    split = np.split(action, [150])
    return ActionStatistics.from_episodes([make_episode(0, len(part), action=part) for part in split])


def test_closed_form(statistics):
    assert statistics.q01[0] == pytest.approx(0.01)
    assert statistics.q99[0] == pytest.approx(0.99)
    assert statistics.mean[0] == pytest.approx(0.5)
    assert statistics.std[0] == pytest.approx(np.sqrt((401**2 - 1) / 12) / 400)


def test_range_maps_to_unit_interval_and_back(statistics):
    low, high = torch.tensor(statistics.q01), torch.tensor(statistics.q99)
    middle = (low + high) / 2
    mapped = normalise(torch.stack([low, middle, high]), statistics)
    moves = torch.tensor([True, False, True, True, True, True, True])
    torch.testing.assert_close(mapped[:, moves], torch.tensor([-1.0, 0.0, 1.0])[:, None].expand(3, 6))
    torch.testing.assert_close(denormalise(mapped, statistics), torch.stack([low, middle, high]))


def test_dimension_that_never_moves(statistics):
    action = torch.tensor([[0.3, 0.25, 0, 0, 0, 0, -1.0], [0.3, 0.9, 0, 0, 0, 0, -1.0]])
    mapped = normalise(action, statistics)
    assert mapped[:, 1].tolist() == [0, 0]
    for value in (-1.0, 0.0, 1.0):
        assert denormalise(torch.full((7,), value), statistics)[1] == 0.25


def test_rare_gripper_is_not_lost(statistics):
    action = torch.zeros(2, 7)
    action[:, 6] = torch.tensor([-1.0, 1.0])
    assert normalise(action, statistics)[:, 6].tolist() == [-1, 1]
    torch.testing.assert_close(denormalise(normalise(action, statistics), statistics)[:, 6], action[:, 6])


def test_outliers_are_clipped(statistics):
    assert normalise(torch.tensor([5.0, 0, 0, 0, 0, 0, 0]), statistics)[0] == 1


def test_json_round_trip_is_exact(statistics):
    assert ActionStatistics.from_json(json.loads(json.dumps(statistics.to_json()))) == statistics


def test_use_without_statistics_is_refused(statistics):
    for function in (normalise, denormalise):
        with pytest.raises(SettingError, match="without statistics"):
            function(torch.zeros(7), None)
        with pytest.raises(SettingError, match="3 dimensions, its statistics 7"):
            function(torch.zeros(3), statistics)
    with pytest.raises(ArtefactError, match="missing"):
        ActionStatistics.from_json(None)
    with pytest.raises(ArtefactError, match=r"missing \(q99\)"):
        ActionStatistics.from_json({k: v for k, v in statistics.to_json().items() if k != "q99"})
    with pytest.raises(ArtefactError, match="not finite"):
        ActionStatistics.from_json(statistics.to_json() | {"mean": [float("nan")] * 7})
    with pytest.raises(SettingError, match="at least one"):
        ActionStatistics.from_episodes([])
