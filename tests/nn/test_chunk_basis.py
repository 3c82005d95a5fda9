"""Unit under test: ``worldrl.world_models.latent.chunk_basis``."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import stream
from worldrl.world_models.latent.chunk_basis import REACH_SHARE, ChunkBasis


@pytest.fixture
def chunks() -> Tensor:
    """Four hundred chunks of six numbers that lie in a plane, far more spread along one direction than the other."""
    axes = torch.linalg.qr(torch.randn(6, 2, generator=stream(0, "axes"))).Q.T
    along = torch.randn(400, 2, generator=stream(0, "chunks")) * torch.tensor([0.1, 0.02])
    return 0.05 + along @ axes


def test_as_many_components_as_chunks_differ_in_lose_only_what_is_clipped(chunks: Tensor) -> None:
    basis = ChunkBasis.of(chunks, 2)
    told = basis.encode(chunks)
    inside = (told.abs() < 1).all(dim=1)
    assert 2 * (1 - REACH_SHARE) >= float((~inside).float().mean()) > 0
    torch.testing.assert_close(basis.decode(told)[inside], chunks[inside])
    assert float(told.abs().max()) == 1
    assert float(basis.explained) > 0.999


def test_the_first_component_is_the_one_that_differs_most(chunks: Tensor) -> None:
    """Known spreads: 0.01 of 0.0104 of the variance lie along the first."""
    one = ChunkBasis.of(chunks, 1)
    assert float(one.explained) == pytest.approx(0.01 / 0.0104, abs=0.01)
    both = ChunkBasis.of(chunks, 2)
    assert both.reach[0] > 3 * both.reach[1]
    torch.testing.assert_close(both.directions @ both.directions.T, torch.eye(2))


def test_nothing_leaves_the_range_of_actions() -> None:
    chunks = torch.rand(50, 4, generator=stream(1, "chunks")) * 2 - 1
    basis = ChunkBasis.of(chunks, 4)
    far = torch.ones(3, 4) * torch.tensor([[1.0], [-1.0], [0.0]])
    assert float(basis.decode(far).abs().max()) <= 1
    assert float(basis.encode(10 * chunks).abs().max()) == 1


def test_chunks_that_are_all_alike_stay_finite() -> None:
    basis = ChunkBasis.of(torch.full((5, 3), 0.25), 2)
    torch.testing.assert_close(basis.decode(basis.encode(torch.full((1, 3), 0.25))), torch.full((1, 3), 0.25))


def test_a_saved_one_is_the_same(chunks: Tensor, tmp_path: Path) -> None:
    basis = ChunkBasis.of(chunks, 2)
    basis.save(tmp_path / "basis")
    loaded = ChunkBasis.load(tmp_path / "basis")
    assert torch.equal(loaded.encode(chunks), basis.encode(chunks))
    assert torch.equal(loaded.explained, basis.explained)
    with pytest.raises(ArtefactError):
        ChunkBasis.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("rows", "components", "message"), [(9, 7, "6 numbers"), (9, 0, "between 1"), (3, 5, "of 3 recorded")]
)
def test_more_components_than_there_can_be_are_refused(rows: int, components: int, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ChunkBasis.of(torch.rand(rows, 6, generator=stream(2, "chunks")), components)
