"""Pieces of a checkpoint's tensors, one artefact of each process of a sharded training: ``step-00000020.shard-1-of-2``.

A piece is a run of a tensor's first rows. The checkpoint itself is written last and names their number, so a kill leaves
either all pieces or an older checkpoint. Any number of processes reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.atomic import remove_folder

KIND = "checkpoint-shard"


@dataclass(frozen=True)
class Piece:
    """Rows ``first``, ``first + 1``, ... of a tensor of ``shape``."""

    rows: Tensor
    first: int
    shape: tuple[int, ...]


def write_shard(checkpoint: Path, number: int, count: int, pieces: Mapping[str, Piece]) -> None:
    """Write one process's pieces of a checkpoint."""
    layout = {name: {"first": piece.first, "shape": list(piece.shape)} for name, piece in pieces.items()}
    tensors = {name: piece.rows for name, piece in pieces.items()}
    write_artefact(_shard(checkpoint, number, count), kind=KIND, config={"layout": layout}, tensors=tensors)


def read_shards(checkpoint: Path, count: int) -> dict[str, Tensor]:
    """Join the pieces of all ``count`` processes; ArtefactError where one is missing or damaged."""
    whole: dict[str, Tensor] = {}
    filled: dict[str, int] = {}
    for number in range(count):
        shard = read_artefact(_shard(checkpoint, number, count), kind=KIND)
        for name, place in shard.config["layout"].items():
            piece = shard.tensors[name]
            if name not in whole:
                whole[name] = torch.empty(place["shape"], dtype=piece.dtype)
            whole[name][place["first"] : place["first"] + len(piece)] = piece
            filled[name] = filled.get(name, 0) + len(piece)
    for name, rows in filled.items():
        if rows != len(whole[name]):
            raise ArtefactError(f"{checkpoint}: the shards hold {rows} of {len(whole[name])} rows of {name}")
    return whole


def remove_shards(checkpoint: Path) -> None:
    """Remove the pieces of a checkpoint, whatever their number."""
    for path in checkpoint.parent.glob(f"{checkpoint.name}.shard-*"):
        remove_folder(path)


def _shard(checkpoint: Path, number: int, count: int) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.shard-{number}-of-{count}")
