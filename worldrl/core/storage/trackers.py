"""Where a run's curves are shown beside ``metrics.jsonl``: TensorBoard, Weights & Biases (wandb) or trackio.

wandb and trackio keep every point that they received, and a resumed run computes the steps after its checkpoint
again. So :class:`_Service` waits for the checkpoint: it sends what ``metrics.jsonl`` holds at each flush.
``<tracker>.json`` in the run directory names the run of the service, and the step up to which each series was sent.
"""

import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from worldrl.core.errors import RunDirectoryError, SettingError
from worldrl.core.extras import require
from worldrl.core.storage.jsonfile import read_record, write_json
from worldrl.core.storage.run import CONFIG, stored_config

TENSORBOARD, WANDB, TRACKIO = "tensorboard", "wandb", "trackio"
PROJECT = "worldrl"
"""The services' project; ``WANDB_PROJECT`` names another."""


class Tracker:
    """Shows the numbers of a run; this one shows nothing."""

    def write(self, series: str, step: int, numbers: Mapping[str, float]) -> None:
        """Show a step's finite numbers; the steps of a series count up."""

    def truncate(self, series: str, step: int) -> None:
        """Expect the steps from ``step`` on of a series and of its sub-series (``series/...``) again."""

    def flush(self) -> None:
        """Bring to the disk what was written, where the tracker waits to be asked."""

    def close(self) -> None:
        """End it."""


def open_tracker(name: str, run_folder: Path, read: Callable[[], Sequence[Mapping[str, Any]]]) -> Tracker:
    """Open a run's tracker; ``read`` gives the lines of ``metrics.jsonl``, before anything is truncated.

    MissingExtraError where its package is not installed; SettingError where the service refuses.
    """
    if name in _CLIENTS:
        return _Service(name, run_folder, read())
    return _TensorBoard(run_folder / name) if name == TENSORBOARD else Tracker()


def belongs(name: str, series: str) -> bool:
    """Whether ``name`` is a series or one of its sub-series."""
    return name == series or name.startswith(f"{series}/")


class _TensorBoard(Tracker):
    """Event files in ``tensorboard/<series>/``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}
        self._purge: dict[str, int] = {}

    def write(self, series: str, step: int, numbers: Mapping[str, float]) -> None:
        writer = self._writer(series)
        for name, number in numbers.items():
            writer.add_scalar(name, number, step)

    def truncate(self, series: str, step: int) -> None:
        for name in [name for name in self._writers if belongs(name, series)]:
            self._writers.pop(name).close()
        self._purge[series] = step

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, series: str) -> Any:
        if series not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            purge = next((step for name, step in self._purge.items() if belongs(series, name)), None)
            self._writers[series] = SummaryWriter(self._folder / series, purge_step=purge)
        return self._writers[series]


@dataclass(frozen=True)
class _Sent:
    """What ``<tracker>.json`` holds."""

    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])  # the service's name of this run
    steps: dict[str, int] = field(default_factory=dict[str, int])  # last step that was sent, by series


class _Client(Protocol):
    """A service's run: made of the run directory and the service's name of the run."""

    def send(self, series: str, step: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _Service(Tracker):
    """A tracker that keeps what it received: each step of each series is sent once."""

    def __init__(self, name: str, run_folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        self._file, self._sent = run_folder / f"{name}.json", _Sent()
        if self._file.exists():
            mend = "delete it to begin a new run there"
            self._sent = read_record(self._file, _Sent, error=RunDirectoryError, mend=mend)
        self._client: _Client = _CLIENTS[name](run_folder, self._sent.run)
        self._waiting: list[tuple[str, int, Mapping[str, float]]] = []
        for line in lines:
            self.write(line["series"], line["step"], {k: x for k, x in line["values"].items() if x is not None})

    def write(self, series: str, step: int, numbers: Mapping[str, float]) -> None:
        if step > self._sent.steps.get(series, -1):
            self._waiting.append((series, step, numbers))

    def truncate(self, series: str, step: int) -> None:
        self._waiting = [line for line in self._waiting if not (belongs(line[0], series) and line[1] >= step)]

    def flush(self) -> None:
        if not self._waiting:
            return
        self._sent.steps.update({series: step for series, step, _ in self._waiting})
        write_json(self._file, asdict(self._sent))
        for line in self._waiting:
            self._client.send(*line)
        self._waiting.clear()

    def close(self) -> None:
        self.flush()
        self._client.close()


class _Wandb:
    """Offline without ``WANDB_MODE``; every series has its own step, since wandb's may not fall."""

    def __init__(self, run_folder: Path, run: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read on import: it reports to its maker
        wandb = require("wandb", extra="wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=run,
                name=run_folder.name,
                dir=run_folder,
                config=_config(run_folder),
                mode=mode,
                resume=None if mode == "offline" else "allow",
                reinit="create_new",
                settings=wandb.Settings(
                    console="off", quiet=True, x_disable_stats=True, x_transaction_log_flush_interval=1.0
                ),
            )
        except (wandb.errors.Error, ValueError) as error:
            raise _refused(WANDB, error) from error
        self._known = set[str]()

    def send(self, series: str, step: int, numbers: Mapping[str, float]) -> None:
        named = {f"{series}/{name}": number for name, number in numbers.items()}
        for name in named.keys() - self._known:
            self._run.define_metric(name, step_metric=f"{series}/step")
            self._known.add(name)
        self._run.log({**named, f"{series}/step": step})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """In trackio's own folder on this machine, unless ``TRACKIO_SPACE_ID`` names a place."""

    def __init__(self, run_folder: Path, run: str) -> None:
        trackio = require("trackio", extra=None)  # its pillow is older than the pinned one
        name = f"{run_folder.name}-{run}"
        shown = {"config": _config(run_folder), "auto_log_cpu": False, "auto_log_gpu": False}
        try:
            with redirect_stdout(sys.stderr):
                self._run = trackio.init(project=PROJECT, name=name, resume="allow", **shown)
        except (OSError, ValueError) as error:
            raise _refused(TRACKIO, error) from error

    def send(self, series: str, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({f"{series}/{name}": number for name, number in numbers.items()}, step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()


_CLIENTS: Mapping[str, Callable[[Path, str], _Client]] = {WANDB: _Wandb, TRACKIO: _Trackio}


def _config(run_folder: Path) -> dict[str, Any]:
    """The run's settings, which the services show beside its curves."""
    file = run_folder / CONFIG
    return stored_config(file) if file.exists() else {}


def _refused(name: str, error: Exception) -> SettingError:
    return SettingError(f"tracker={name}: {' '.join(str(error).split()).rstrip('.')}; mend it, or give tracker=none")
