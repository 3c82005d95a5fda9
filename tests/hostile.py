"""Values and bytes that decoders of external messages must survive; drawn from a generator, so that a failure repeats."""

import numpy as np

DEEP: list = []
for _ in range(300):
    DEEP = [DEEP]

VALUES = (
    None, True, -1, 0, 1.5, 1e308, float("nan"), float("inf"), 2**63, -(2**63), "", "abc", "x" * 5000, "\n\x1b[31m", [], [[]], {},
    {"a": 1}, DEEP, [1e308, 1e308], [2**62, 2**62], [0, 2**62, 2**62], [-1], [True], ["3"], [0] * 40, [1] * 70, "O", "|O", "<U3",
    "(2,)f4x", "((((", "(" * 3000, "f4,(", "i8,i8", "{", "[('a','f4')]", "1" * 5000, "<M8[s]", "<M8[", "V5", "<f16", "<c8", "=f4",
    "f4", "<f4 ", "|u1", "<f4", "|b1", "float32", "f4\x00", "('f4',", "dict", "3*f4", "9" * 30 + "f4",
)  # fmt: skip


def mutated(draw: np.random.Generator, value: object) -> object:
    """A copy in which one part, on some level, is another value; or is missing, or is there under another key."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.25:
        return VALUES[int(draw.integers(len(VALUES)))]
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[int(draw.integers(len(keys)))]
    copy = value.copy()
    if draw.random() < 0.1:
        del copy[key]
    else:
        copy[key] = mutated(draw, value[key])
    return copy


def damaged(draw: np.random.Generator, message: bytes) -> bytes:
    """A copy with changed bytes, cut, or with a part twice."""
    noisy = bytearray(message)
    for _ in range(int(draw.integers(1, 4))):
        place = int(draw.integers(len(noisy) + 1))
        kind = int(draw.integers(4))
        if kind == 0:
            del noisy[place:]
        elif kind == 1:
            noisy[place:place] = draw.bytes(int(draw.integers(1, 9)))
        elif kind == 2:
            noisy[place:place] = noisy[: int(draw.integers(1, 40))]
        elif noisy:
            noisy[place % len(noisy)] = int(draw.integers(256))
    return bytes(noisy)
