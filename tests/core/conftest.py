"""Shared by the tests of the core room: real child processes, and folders as comparable values."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
