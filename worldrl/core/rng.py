"""Randomness enters worldrl through this door only, in streams that are named, not numbered.

A new consumer moves nobody's draws, and a loop that asks for a stream per step needs no generator state.
"""

import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager

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
    return torch.Generator(device=device).manual_seed(seed)


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
