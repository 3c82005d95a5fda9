"""Instruction encoder: instructions to vectors, without a vocabulary file.

A word is the sum of its own hashed embedding and the mean of its hashed character trigrams. An unknown word ("cubes")
is therefore close to related words ("cube"). One small self-attention block with position codes makes word order
matter, and attention pooling weights the words. The hash is CRC-32: the same on every machine and in every process.

Shapes legend: ``B`` rows, ``U`` distinct instructions, ``W`` words, ``P`` pieces of a word, ``D`` width.
"""

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError
from worldrl.core.instructions import MAX_WORDS, instruction_words

MAX_PIECES = 16  # one whole-word piece and up to 15 trigrams; further trigrams are dropped

PADDING = 0


def word_pieces(word: str, buckets: int) -> list[int]:
    """Hash a lower-case word, then the trigrams of ``<word>``, into buckets 1 … ``buckets - 1``; 0 is padding."""
    marked = f"<{word}>"
    trigrams = [marked[i : i + 3] for i in range(len(marked) - 2)]
    pieces = [f"word:{word}", *(f"trigram:{t}" for t in trigrams)]
    return [1 + zlib.crc32(piece.encode()) % (buckets - 1) for piece in pieces[:MAX_PIECES]]


@lru_cache(maxsize=8192)
def instruction_pieces(instruction: str, buckets: int) -> tuple[tuple[int, ...], ...]:
    """Hash an instruction into ``MAX_WORDS`` × ``MAX_PIECES`` buckets; SettingError: empty or too long."""
    rows = [word_pieces(word, buckets) for word in instruction_words(instruction)]
    rows += [[]] * (MAX_WORDS - len(rows))
    return tuple(tuple(row + [PADDING] * (MAX_PIECES - len(row))) for row in rows)


def unique_instructions(instructions: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the distinct instructions in order of appearance, and each row's index into them."""
    index: dict[str, int] = {}
    rows = [index.setdefault(instruction, len(index)) for instruction in instructions]
    return list(index), rows


def position_codes(length: int, width: int) -> Tensor:
    """Sinusoidal position codes, float32 ``[length, width]``."""
    position = torch.arange(length)[:, None]
    rate = torch.exp(-math.log(100.0) * torch.arange(0, width, 2) / width)
    return torch.cat([torch.sin(position * rate), torch.cos(position * rate)], dim=1)[:, :width]


class InstructionEncoder(nn.Module):
    """Instructions to vectors ``[B, width]``; a repeated instruction is encoded once."""

    position: Tensor

    def __init__(self, width: int = 64, *, buckets: int = 4096, heads: int = 4) -> None:
        super().__init__()
        if width % heads or buckets < 2:
            raise SettingError(f"width: must be a multiple of heads={heads}, got {width}; buckets >= 2: {buckets}")
        self.width, self.buckets, self.heads = width, buckets, heads
        self.embedding = nn.Embedding(buckets, width, padding_idx=PADDING)
        # Small, so that an untrained bucket contributes almost nothing.
        nn.init.normal_(self.embedding.weight, std=0.1)
        with torch.no_grad():
            self.embedding.weight[PADDING] = 0
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.pool = nn.Linear(width, heads)
        self.project = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.register_buffer("position", 0.1 * position_codes(MAX_WORDS, width), persistent=False)

    def forward(self, instructions: Sequence[str]) -> Tensor:
        """Encode ``B`` instructions to float ``[B, width]``; SettingError: an instruction is empty or too long."""
        distinct, rows = unique_instructions(instructions)
        pieces = torch.tensor(
            [instruction_pieces(s, self.buckets) for s in distinct], device=self.embedding.weight.device
        )
        vectors = self.encode_pieces(pieces)
        return vectors[torch.tensor(rows, device=vectors.device)]

    def encode_pieces(self, pieces: Tensor) -> Tensor:
        """Encode hashed instructions, int64 ``[U, W, P]``, to ``[U, width]``."""
        present = pieces[:, :, 0] != PADDING  # [U, W]
        x = self._embed_words(pieces) + self.position
        x = x + self._mix(self.norm(x), present)
        weight = self.pool(x).masked_fill(~present[:, :, None], -torch.inf).softmax(dim=1)  # [U, W, heads]
        values = x.unflatten(2, (self.heads, -1))  # [U, W, heads, D / heads]
        return self.project((weight[..., None] * values).sum(dim=1).flatten(1))

    def _embed_words(self, pieces: Tensor) -> Tensor:
        vectors = self.embedding(pieces)  # [U, W, P, D]
        count = (pieces[:, :, 1:] != PADDING).sum(dim=2, keepdim=True).clamp_min(1)
        return vectors[:, :, 0] + vectors[:, :, 1:].sum(dim=2) / count

    def _mix(self, x: Tensor, present: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [U, heads, W, D / heads]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=present[:, None, None, :])
        return self.out(mixed.transpose(1, 2).flatten(2))
