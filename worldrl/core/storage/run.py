"""A run directory: one command's settings, stages and result, owned by one process at a time.

Layout::

    run_dir/
      config.yaml  run.lock  run_clock.json  result.json
      stages/<nn-name>/stage.json  ...that stage's artefacts

A stage is finished when its ``stage.json`` exists; it is written last, so a rerun skips exactly what is whole.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, cast

import yaml

from worldrl.core.device import hardware, peak_rss_mb
from worldrl.core.errors import RunDirectoryError
from worldrl.core.renames import COMMANDS, current_config, current_results
from worldrl.core.storage.atomic import disk_errors, recover, write_file
from worldrl.core.storage.jsonfile import check_digest, difference, digest, plain, read_json, read_record, write_json
from worldrl.core.storage.lock import take_lock
from worldrl.core.storage.log import current_progress
from worldrl.core.storage.provenance import code_version, package_versions

SCHEMA = 1
TICK_EVERY_S = 10.0
STAGE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
CONFIG, CLOCK, RESULT, INPUTS, LOCK = "config.yaml", "run_clock.json", "result.json", "inputs.json", "run.lock"
MAX_ERROR, MAX_DEPTH = 2000, 50
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML has it: ten times as fast
CLAIM = (CONFIG, CLOCK, INPUTS)
"""What makes a directory that of one command and config, and may be taken back while nothing else is in it."""


@dataclass(frozen=True)
class Stage:
    """One step of a run, with a folder of its own."""

    name: str  # for example `"02-train-policy"`
    folder: Path  # where its artefacts go; exists
    config_hash: str  # of the run's config, stored with the summary

    @property
    def finished(self) -> bool:
        """Whether an earlier or this process finished it."""
        return (self.folder / "stage.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """What :meth:`finish` was given; RunDirectoryError where the stage is not finished, or its file is damaged."""
        if not self.finished:
            raise RunDirectoryError(f"stage {self.name!r} in {self.folder} is not finished; run it first")
        file, mend = self.folder / "stage.json", "delete it to run the stage again"
        found = check_digest(file, read_json(file), "summary", error=RunDirectoryError, mend=mend)
        return current_results(found)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the stage as finished, once all is on the disk; RunDirectoryError where it was, or the disk refuses."""
        if self.finished:
            raise RunDirectoryError(f"stage {self.name!r} in {self.folder} is already finished; skip it")
        body = plain(summary, where=f"stage {self.name}", nonfinite="null", error=RunDirectoryError)
        entry = {
            "schema": SCHEMA,
            "stage": self.name,
            "config_hash": self.config_hash,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "summary": body,
            "digest": digest(body),
        }
        write_json(self.folder / "stage.json", entry)


class RunDirectory:
    """A locked run directory of one ``command``; made by :meth:`open`. ``config_hash`` leaves out what may change."""

    def __init__(
        self,
        path: Path,
        command: str,
        config: dict[str, Any],
        resume_command: str,
        lock: int,
        clock: Callable[[], float],
        begun: bool,
        free: Collection[str],
    ) -> None:
        self.path, self.command, self.config, self.resume_command = path, command, config, resume_command
        self.config_hash = config_hash(_bound(config, free))
        self._lock: int | None = lock
        self._begun = begun
        self._clock, self._began = clock, clock()
        earlier = _clock(path)
        self._earlier, self._peak_mb = earlier.wall_s, earlier.peak_rss_mb
        self._ticked = self._began
        self._error = ""

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        command: str,
        config: Mapping[str, Any],
        resume_command: str,
        free: Collection[str] = (),
        complete: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> "RunDirectory":
        """Create or reopen a run directory and lock it for this process.

        The config must be the same on a later open, except for ``free`` keys, on which no result depends. ``complete``
        adds to a stored config the keys that did not exist when it was written.
        RunDirectoryError where it cannot be written, another process has it, or it belongs to another command or
        config.
        """
        path = Path(path)
        body = plain(config, where="config", error=RunDirectoryError)
        with disk_errors(path, needed=0, error=RunDirectoryError):
            path.mkdir(parents=True, exist_ok=True)
        lock = take_lock(path / LOCK, command)
        try:
            recover(path)
            begun = _claim_config(path, command, body, free, complete)
            run = cls(path, command, body, resume_command, lock, clock, begun, free)
            run.tick(force=True)
        except BaseException:
            os.close(lock)
            raise
        return run

    def stage(self, name: str) -> Stage:
        """Return a stage such as ``"02-train-policy"``, making its folder; RunDirectoryError for another form."""
        if STAGE_NAME.fullmatch(name) is None:
            raise RunDirectoryError(f"stage: name {name!r} must match {STAGE_NAME.pattern}, like '02-train-policy'")
        folder = self.path / "stages" / name
        with disk_errors(folder, needed=0, error=RunDirectoryError):
            folder.mkdir(parents=True, exist_ok=True)
        self.tick(force=True)
        return Stage(name, folder, self.config_hash)

    def stage_finished(self, name: str) -> bool:
        """Whether a stage has finished; unlike :meth:`stage` it makes no folder."""
        return (self.path / "stages" / name / "stage.json").is_file()

    @property
    def wall_s(self) -> float:
        """Seconds worked on this run, over all sessions; a killed one counts up to its last :meth:`tick`."""
        return self._earlier + self._clock() - self._began

    def count_earlier(self, wall_s: float) -> None:
        """Let the clock count at least ``wall_s`` seconds of earlier sessions: stages that another run has made."""
        self._earlier = max(self._earlier, wall_s)

    def tick(self, *, force: bool = False) -> None:
        """Note wall time and the memory of living workers too, at most every ten seconds; cheap in every step."""
        now = self._clock()
        if not force and now - self._ticked < TICK_EVERY_S:
            return
        self._ticked = now
        self._peak_mb = max(self._peak_mb, peak_rss_mb())
        body = {
            "schema": SCHEMA,
            "command": self.command,
            "resume": self.resume_command,
            "wall_s": self.wall_s,
            "peak_rss_mb": self._peak_mb,
            "progress": current_progress(),
            "error": self._error,
        }
        write_json(self.path / CLOCK, body)

    def write_result(
        self,
        metrics: Mapping[str, Any],
        *,
        seed: int,
        device: str,
        wall_s: float | None = None,
        protocol_hash: str | None = None,
    ) -> dict[str, Any]:
        """Write ``result.json``, the stable record that machines read; non-finite metrics become null.

        RunDirectoryError where a value is not JSON-ready, or the disk refuses.
        """
        self.tick(force=True)
        result = {
            "schema": SCHEMA,
            "command": self.command,
            "config_hash": self.config_hash,
            "protocol_hash": protocol_hash,
            "code": code_version(),
            "packages": package_versions(),
            "seed": seed,
            "device": str(device),
            "hardware": hardware(str(device)),
            "wall_s": round(self.wall_s if wall_s is None else wall_s, 3),
            "peak_rss_mb": round(self._peak_mb, 1),
            "metrics": plain(metrics, where="metrics", nonfinite="null", error=RunDirectoryError),
        }
        write_json(self.path / RESULT, result)
        return result

    def close(self) -> None:
        """Note the wall time and let the lock go."""
        if self._lock is not None:
            try:
                self.tick(force=True)
            finally:
                os.close(self._lock)
                self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Close it; begun here and failed before anything was made, it is free for the corrected settings."""
        if self._begun and self._lock is not None and isinstance(error, Exception) and not _holds_work(self.path):
            for name in CLAIM:
                (self.path / name).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None
        if isinstance(error, Exception):
            self._error = f"{type(error).__name__}: {error}"[:MAX_ERROR]
        self.close()


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of a JSON-ready config, independent of key order."""
    return digest(plain(config, where="config", error=RunDirectoryError))


def _bound(config: Mapping[str, Any], free: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in free}


def _holds_work(path: Path) -> bool:
    """Whether anything but the claim and the lock has content: logs and stages are made empty."""
    own = {path / name for name in (*CLAIM, LOCK)}
    return any(file.is_file() and file not in own and file.stat().st_size > 0 for file in path.rglob("*"))


def _claim_config(
    path: Path,
    command: str,
    config: dict[str, Any],
    free: Collection[str],
    complete: Callable[[dict[str, Any]], dict[str, Any]],
) -> bool:
    """Write the config on the first open, which returns True; later, insist on the same command and config but for ``free``."""
    file = path / CONFIG
    if not file.exists():
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        write_file(file, text.encode())
        return True
    begun = _clock(path).command or command
    if COMMANDS.get(begun, begun) != command:
        raise RunDirectoryError(f"{path}: was begun by {begun!r}, not {command!r}; choose a new run_dir")
    earlier = complete(current_config(stored_config(file), command))
    if changed := difference(_bound(earlier, free), _bound(config, free)):
        raise RunDirectoryError(
            f"{path}: was begun with another config: {changed}; choose a new run_dir, or delete {path} to start again"
        )
    return False


def stored_config(file: Path) -> dict[str, Any]:
    """Read ``config.yaml``; RunDirectoryError where it is missing, unreadable or no mapping."""
    try:
        return parsed_config(file.read_bytes(), file)
    except OSError as reason:
        raise RunDirectoryError(f"{file}: cannot be read ({reason.strerror}); check its permissions") from reason


def parsed_config(data: bytes, file: Path) -> dict[str, Any]:
    """Parse the content of ``config.yaml``; RunDirectoryError, which names ``file``, where it is no mapping."""
    try:
        text = data.decode()
        _refuse_what_is_never_written(text, file)
        stored: Any = yaml.load(text, Loader=LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as reason:
        raise RunDirectoryError(f"{file}: damaged; restore it, or choose a new run_dir") from reason
    if not isinstance(stored, dict):
        raise RunDirectoryError(f"{file}: holds no settings; restore it, or choose a new run_dir")
    return cast("dict[str, Any]", stored)


def _refuse_what_is_never_written(text: str, file: Path) -> None:
    """Parts repeated by reference, which may fill the memory, and deep nesting, which may end libyaml's process."""
    depth = 0
    for event in cast("Any", yaml).parse(text, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise RunDirectoryError(
                f"{file}: repeats parts by reference, as worldrl never writes; choose a new run_dir"
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise RunDirectoryError(f"{file}: is nested too deeply; restore it, or choose a new run_dir")


@dataclass(frozen=True)
class Doing:
    """What a run does now."""

    description: str
    count: int
    total: int
    unit: str


@dataclass(frozen=True)
class Clock:
    """What ``run_clock.json`` holds: of a run that works now ``progress``, of one that failed ``error``."""

    schema: int = SCHEMA
    command: str = ""
    resume: str = ""
    wall_s: float = 0.0
    peak_rss_mb: float = 0.0
    progress: Doing | None = None
    error: str = ""


def _clock(path: Path) -> Clock:
    file = path / CLOCK
    if not file.exists():
        return Clock()
    return read_record(file, Clock, error=RunDirectoryError, mend="delete it")
