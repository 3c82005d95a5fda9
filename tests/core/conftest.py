"""Shared by the tests of the core room: real child processes, folders as comparable values, comparisons played exactly."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Child = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def child() -> Child:
    """Run Python code in a process of its own: ``child(code, *arguments)``; ``file=`` runs a script instead."""

    def run(
        code: str = "", *arguments: object, file: Path | None = None, prefix: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        program = [str(file)] if file else ["-c", code]
        return subprocess.run(
            [*prefix, sys.executable, *program, *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def listing() -> Callable[[Path], dict[str, bytes]]:
    """Return every file under a folder by relative name, with its content."""

    def read(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    return read


@pytest.fixture
def play() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Play sequential comparisons exactly: ``play(n_max, moves, crossed)``.

    ``moves`` maps what one more episode of each adds to the counts of a and b, ``(da, db)``, to its probability ``[G]``, the rest
    adding nothing; ``crossed(n, a, b)`` says which counts stop. Returns the probability ``[2, n_max, G]`` of having stopped with
    more of a and with more of b after each n, and the mean number of episodes ``[G]``.
    """

    def walk(n_max, moves, crossed):
        moves = {step: np.asarray(p, float)[:, None, None] for step, p in moves.items()}
        a, b = np.indices((n_max + 1, n_max + 1))
        alive = np.zeros((len(next(iter(moves.values()))), n_max + 1, n_max + 1))
        alive[:, 0, 0] = 1
        stopped, episodes = np.zeros((2, n_max, len(alive))), np.zeros(len(alive))
        for n in range(1, n_max + 1):
            episodes += alive.sum((1, 2))
            moved = (1 - sum(moves.values())) * alive
            for (da, db), p in moves.items():
                moved[:, da:, db:] += p * alive[:, : n_max + 1 - da, : n_max + 1 - db]
            out = crossed(n, a, b)
            for direction, ahead in enumerate((a > b, b > a)):
                stopped[direction, n - 1 :] += moved[:, out & ahead].sum(1)
            moved[:, out] = 0
            alive = moved
        return stopped, episodes

    return walk
