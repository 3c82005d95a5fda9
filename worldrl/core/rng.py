"""Randomness enters worldrl through this door only, in streams that are named, not numbered.

A new consumer moves nobody's draws, and a loop that asks for a stream per step needs no generator state.
"""

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Name = str | int


def stream_seed(seed: int, *names: Name) -> int:
    """Derive a seed in [0, 2**63) from the user's and a path of names such as ``("imagine", iteration, row)``."""
    text = "\x1f".join([str(int(seed)), *(str(name) for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream(seed: int, *names: Name, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator for the named stream, on ``device``."""
    generator = torch.Generator(device=device)
    generator.manual_seed(stream_seed(seed, *names))
    return generator


def numpy_stream(seed: int, *names: Name) -> np.random.Generator:
    """Return a numpy generator for the named stream."""
    return np.random.default_rng(stream_seed(seed, *names))


def on_device(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """Return a generator that draws on ``device``: the given one, or one seeded by a single draw of it.

    For training, where drawing on the CPU would cost more than the step; the numbers depend on the kind of device.
    """
    if generator.device.type == device.type:
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    found = part_of(generator).generator(device)
    found.manual_seed(seed)
    return found


@contextmanager
def lent_to_torch(seed: int, *names: Name) -> Generator[None]:
    """Lend the named stream to module constructors and others' loops, which draw from torch's global generator."""
    lent = torch.get_rng_state()
    torch.set_rng_state(stream(seed, *names).get_state())
    try:
        yield
    finally:
        torch.set_rng_state(lent)


initial_weights = lent_to_torch  # The name under which module constructors borrow it


def row_streams(seed: int, names: Sequence[Name], rows: int) -> list[torch.Generator]:
    """Return one CPU generator per row: draws depend neither on neighbouring rows nor on the device."""
    return [stream(seed, *names, row) for row in range(rows)]


def row_noise(
    generators: Sequence[torch.Generator], shape: Sequence[int], device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Draw standard normal float32 ``[len(generators), *shape]``, each row from its own generator."""
    return torch.stack([torch.randn(tuple(shape), generator=g) for g in generators]).to(device)


@dataclass(frozen=True)
class Part:
    """The ``number``-th of ``count`` equal parts of a batch's rows."""

    number: int = 0
    count: int = 1

    def rows(self, total: int) -> slice:
        """Which rows of a whole batch of ``total`` are its own; ValueError where the parts are not equal."""
        if total % self.count:
            raise ValueError(f"{total} rows do not divide into {self.count} equal parts")
        own = total // self.count
        return slice(self.number * own, (self.number + 1) * own)

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Make a generator that :func:`draw`, :func:`whole_rows` and :func:`own_rows` know as this part's."""
        if self.count == 1:
            return torch.Generator(device=device)
        generator = _PartGenerator(device=device)
        generator.part = self
        return generator

    def stream(self, seed: int, *names: Name) -> torch.Generator:
        """Return the CPU generator of the named stream; all parts of a batch draw the same numbers from it."""
        generator = self.generator()
        generator.manual_seed(stream_seed(seed, *names))
        return generator


WHOLE = Part()
"""All rows: the one part of an undivided batch."""


class _PartGenerator(torch.Generator):
    """A generator that carries the part for which is drawn."""

    part: Part


def part_of(generator: torch.Generator) -> Part:
    """Which part of the rows a generator draws for; the only one, unless :class:`Part` made it."""
    return generator.part if isinstance(generator, _PartGenerator) else WHOLE


def whole_rows(rows: int, generator: torch.Generator) -> int:
    """How many rows the whole batch has, of which ``rows`` are the generator's part."""
    return rows * part_of(generator).count


def own_rows(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Take the rows of the generator's part out of those of the whole batch."""
    part = part_of(generator)
    return value if part.count == 1 else value[part.rows(len(value))]


def draw(
    sample: Callable[..., torch.Tensor], shape: Sequence[int], generator: torch.Generator, **more: Any
) -> torch.Tensor:
    """Draw ``shape``, rows first, by ``sample`` (``torch.rand`` or alike): for the whole batch, to keep the own rows."""
    rows, *rest = shape
    return own_rows(sample((whole_rows(rows, generator), *rest), generator=generator, **more), generator)
