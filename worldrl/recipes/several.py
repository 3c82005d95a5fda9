"""The start of a command in several processes: they meet and compare their settings and their run directory."""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import SettingError
from worldrl.core.storage.jsonfile import difference
from worldrl.core.training.processes import gather_texts, joined
from worldrl.core.training.ranks import keep_silent, rank, world_size
from worldrl.settings import as_plain

if TYPE_CHECKING:
    import torch

TOKEN = "processes.txt"  # written by the first process into the run directory, read by the others, removed at once
USER_ERROR, INTERRUPTED = 2, 130


@contextmanager
def together(settings: Any, device: torch.device) -> Generator[None]:
    """Meet the other processes of the launch, if any; SettingError where settings or run directory are not the same.

    The first process alone says so, and says that the run was interrupted; the others end with its exit code.
    """
    if world_size() == 1:
        yield
        return
    if rank() > 0:
        keep_silent()
    try:
        with joined(device):
            require_same_settings(settings, device)
            require_shared_folder(Path(settings.run_dir), device)
            yield
    except KeyboardInterrupt:
        if rank() > 0:
            raise SystemExit(INTERRUPTED) from None
        raise


def require_same_settings(settings: Any, device: torch.device) -> None:
    """Compare the settings of all processes with those of the first."""
    found = [json.loads(text) for text in gather_texts(json.dumps(as_plain(settings)), device)]
    for number, other in enumerate(found):
        if changed := difference(found[0], other):
            _refuse(f"process {number} has other settings than the first: {changed}; start all with the same command")


def require_shared_folder(run_dir: Path, device: torch.device) -> None:
    """Let the first process write a word into the run directory, and all read it."""
    file = run_dir / TOKEN
    if rank() == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        file.write_text(secrets.token_hex(8))
    word = gather_texts(file.read_text() if rank() == 0 else "", device)[0]
    seen = gather_texts(file.read_text() if file.is_file() else "nothing", device)
    if rank() == 0:
        file.unlink()
    if missing := [number for number, text in enumerate(seen) if text != word]:
        _refuse(f"run_dir={run_dir}: is another folder in process {missing[0]}; give one that all processes share")


def _refuse(message: str) -> None:
    """Raise the SettingError that all processes found, in words in the first of them only."""
    if rank() > 0:
        raise SystemExit(USER_ERROR)
    raise SettingError(message)
