"""What simulator jobs share: opening the run directory, choosing tasks, printing rates."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from worldrl.core.errors import SettingError, nearest
from worldrl.core.run import RunDirectory
from worldrl.settings import as_plain


def open_run(command: str, settings: Any) -> RunDirectory:
    """Open (or reopen) the run directory of a job.

    Args:
        command: for example ``"collect"``.
        settings: the job's settings dataclass, with ``run_dir``.

    Raises:
        RunDirectoryError: it is in use, not writable, or belongs to other settings.
    """
    config = as_plain(settings)
    del config["run_dir"]  # a run directory may be moved
    again = resume_command(command, settings)
    return RunDirectory.open(Path(settings.run_dir), command=command, config=config, resume_command=again)


def resume_command(command: str, settings: Any) -> str:
    """The command line that continues a run: every setting that differs from its default."""
    tokens = [f"run_dir={settings.run_dir}"]
    for item in fields(settings):
        value = getattr(settings, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if item.name != "run_dir" and value != default:
            tokens.append(f"{item.name}={_text(as_plain(value))}")
    return shlex.join(["worldrl", command, *tokens])


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(_text(item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def choose_tasks(tasks: Sequence[str], kind: str | None) -> list[str]:
    """Return the named tasks, or all of one kind, or all.

    Args:
        tasks: names; empty takes all of ``kind``.
        kind: object, spatial, goal, long, or None for all.

    Raises:
        SettingError: an unknown name, a task named twice, or both given.
    """
    from worldrl_envs.tasks import KINDS, task_names

    if tasks and kind is not None:
        raise SettingError(f"tasks and kind: give one of them, received tasks={list(tasks)} and kind={kind}")
    if kind is not None and kind not in KINDS:
        raise SettingError(f"kind: unknown value {kind!r}{nearest(kind, KINDS)}")
    for name in tasks:
        if name not in task_names():
            raise SettingError(f"tasks: unknown task {name!r}{nearest(name, task_names())}")
    if len(set(tasks)) < len(tasks):
        raise SettingError(f"tasks: each may be named once, received {list(tasks)}")
    return list(tasks) or list(task_names(kind))


def rate_interval(rate: Mapping[str, Any]) -> str:
    """A rate's interval in per cent, for tables."""
    return f"{100 * rate['lo']:.0f}–{100 * rate['hi']:.0f} %"
