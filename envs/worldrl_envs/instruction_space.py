"""The space of instructions: a Text space that keeps its text in Gymnasium's asynchronous vectors.

`AsyncVectorEnv` makes the batch once and relies on views of shared memory, which text has not: Gymnasium 1.4.0 shows
256 times the first character. Here the batch reads the memory at each look, and a copy becomes a tuple of ordinary
text.
"""

import multiprocessing
import string
from collections.abc import Iterator
from typing import Any, SupportsIndex

import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

CHARSET = string.ascii_letters + string.digits + string.punctuation + " "
MAX_INSTRUCTION = 256  # characters


class InstructionSpace(Text):
    """Text of 1 to 256 printable ASCII characters."""

    def __init__(
        self,
        max_length: int = MAX_INSTRUCTION,
        *,
        min_length: int = 1,
        charset: frozenset[str] | str = CHARSET,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(max_length, min_length=min_length, charset=charset, seed=seed)

    def refusal(self, text: object) -> str | None:
        """Why `text` is no instruction, such as "has 300 characters"; None where it is one."""
        if not isinstance(text, str):
            return f"must be text, got {type(text).__name__}"
        if not self.min_length <= len(text) <= self.max_length:
            return f"must have {self.min_length} to {self.max_length} characters, got {len(text)}"
        for place, character in enumerate(text):
            if character not in self.character_set:
                return f"must be printable ASCII text, got {character!r} at character {place}"
        return None


class SharedInstructions(tuple[str, ...]):
    """Instructions of all rows, read from shared memory at each look. A tuple, as the batched space wants."""

    memory: np.ndarray[Any, np.dtype[np.int32]]

    def __new__(cls, memory: Any, rows: int, length: int) -> "SharedInstructions":
        """View `memory`, int32[rows * length]: code points of each row, padded with zeros."""
        made = super().__new__(cls, ("",) * rows)
        made.memory = np.frombuffer(memory.get_obj(), np.int32).reshape(rows, length)
        return made

    def _now(self) -> tuple[str, ...]:
        return tuple("".join(map(chr, row[row > 0].tolist())) for row in self.memory)

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        return self._now()[index]

    def __eq__(self, other: object) -> bool:
        return self._now() == other

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # its value changes with every step

    def __contains__(self, text: object) -> bool:
        return text in self._now()

    def __repr__(self) -> str:
        return repr(self._now())

    def __copy__(self) -> tuple[str, ...]:
        return self._now()

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return self._now()

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self._now()),)


@create_shared_memory.register(InstructionSpace)
def _create(space: InstructionSpace, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("i", n * space.max_length)


@read_from_shared_memory.register(InstructionSpace)
def _read(space: InstructionSpace, shared_memory: Any, n: int = 1) -> SharedInstructions:
    return SharedInstructions(shared_memory, n, space.max_length)


@write_to_shared_memory.register(InstructionSpace)
def _write(space: InstructionSpace, index: int, values: str, shared_memory: Any) -> None:
    if len(values) > space.max_length:
        raise ValueError(f"instruction: must have at most {space.max_length} characters, got {len(values)}")
    codes = np.zeros(space.max_length, np.int32)
    codes[: len(values)] = [ord(character) for character in values]
    place = slice(index * space.max_length, (index + 1) * space.max_length)
    np.frombuffer(shared_memory.get_obj(), np.int32)[place] = codes
