"""Shared by simulator jobs: the run directory, where simulator processes run, choosing tasks, printing rates."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from worldrl.core.errors import RunDirectoryError, SettingError, nearest
from worldrl.core.storage.jsonfile import difference, read_json, write_json
from worldrl.core.storage.run import INPUTS, TICK_EVERY_S, RunDirectory
from worldrl.settings import MAY_CHANGE, WHERE, as_plain, non_negative, one_of, resume_command, setting

if TYPE_CHECKING:
    from worldrl.methods.rl.imagining import Imaginers
    from worldrl.recipes.side_by_side import Crew
    from worldrl.rollout.planning.config import Planner
    from worldrl.simulators.process import Engine

DATASET = "dataset"  # Folder of the recorded episodes in a run directory


class Heartbeat:
    """A thread that notes a run's wall time and memory inside a ``with`` block; workers count towards the peak."""

    def __init__(self, run: RunDirectory, every_s: float = TICK_EVERY_S) -> None:
        self._run, self._every_s = run, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="worldrl-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._every_s):
            self._run.tick(force=True)


@contextmanager
def open_run(command: str, settings: Any) -> Generator[RunDirectory]:
    """Open or reopen a job's run directory, with a heartbeat; RunDirectoryError where it is in use or another's.

    A run that was begun before a setting existed is resumed with the setting's default, and refuses other values.
    """
    config = {name: value for name, value in as_plain(settings).items() if name not in MAY_CHANGE}
    path, resume = Path(settings.run_dir), resume_command(command)
    complete = partial(with_defaults, schema=type(settings))
    opened = RunDirectory.open(
        path, command=command, config=config, resume_command=resume, free=WHERE, complete=complete
    )
    with opened as run, Heartbeat(run):
        yield run


def with_defaults(stored: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Add to a stored config the defaults of settings that it lacks, also within its groups.

    ``schema`` is the settings class, or a group's default value. A mapping of free names is no group: nothing is added.
    """
    found = dict(stored)
    for item in fields(schema):
        if not isinstance(schema, type):
            default = getattr(schema, item.name)
        elif item.default_factory is not MISSING:
            default = item.default_factory()
        else:
            default = item.default  # MISSING of a setting that must be given
        if is_dataclass(default) and isinstance(found.get(item.name), Mapping):
            found[item.name] = with_defaults(found[item.name], default)
        elif item.name not in found and default is not MISSING and item.name not in MAY_CHANGE:
            found[item.name] = as_plain(default)
    return found


def claim_inputs(run: RunDirectory, inputs: Mapping[str, Any]) -> None:
    """Note what exactly a run reads; RunDirectoryError where it was begun with other content of the same folders."""
    file = run.path / INPUTS
    if file.exists() and (changed := difference(read_json(file), inputs)):
        raise RunDirectoryError(f"{run.path}: was begun with other content: {changed}; choose a new run_dir")
    write_json(file, inputs)


def measured_inputs(policy: str, identity: str, suite: str, planner: Planner | None) -> dict[str, Any]:
    """What a measurement reads: the policy of this ``identity``, a planner's world model, and an adapter's file."""
    inputs = {"policy": {"path": policy, "hash": identity}}
    if planner is not None:
        from worldrl.core.storage.artefact import artefact_hash

        folder = planner.config.world_model
        inputs["planning.world_model"] = {"path": folder, "hash": artefact_hash(Path(folder))}
    file = Path(suite.rpartition(":")[0])
    if file.is_file():
        inputs["suite"] = {"path": suite, "hash": hashlib.sha256(file.read_bytes()).hexdigest()}
    return inputs


def choose_tasks(tasks: Sequence[str], kind: str | None) -> list[str]:
    """Named tasks, each once; without names all of one kind, or all of one arm for None. SettingError for others."""
    from worldrl_envs.tasks import BIMANUAL, KINDS, task_names

    kinds, known = (*KINDS, BIMANUAL), (*task_names(), *task_names(BIMANUAL))
    if tasks and kind is not None:
        raise SettingError(f"tasks and kind: give one of them, got tasks={list(tasks)} and kind={kind}")
    if kind is not None and kind not in kinds:
        raise SettingError(f"kind: unknown value {kind!r}{nearest(kind, kinds)}")
    for name in tasks:
        if name not in known:
            raise SettingError(f"tasks: unknown task {name!r}{nearest(name, known)}")
    if len(set(tasks)) < len(tasks):
        raise SettingError(f"tasks: each may be named once, got {list(tasks)}")
    return list(tasks) or list(task_names(kind))


def rate_interval(rate: Mapping[str, Any]) -> str:
    """A rate's interval in per cent, for tables."""
    return f"{100 * rate['lo']:.0f}–{100 * rate['hi']:.0f} %"


# -- where processes run --------------------------------------------------------------------------------

LOCAL, RAY = "local", "ray"
ENGINE = "where its processes run: local, or ray for the nodes of a Ray cluster; results are equal"
WITH_RAY = f"engine={RAY}"


@dataclass
class RayOptions:
    """Which Ray cluster, and what each process takes of it besides one core."""

    address: str = setting("auto", "HOST:PORT, auto (RAY_ADDRESS, or this machine's cluster), or local for a new one")
    gpus: float = setting(0.0, "GPUs of each process, also a fraction: where a network runs in it on cuda")

    def __post_init__(self) -> None:
        """Check the ranges."""
        non_negative("gpus", self.gpus)
        if not self.address or "://" in self.address:
            raise SettingError(
                f"ray.address: must be HOST:PORT, auto or local, got {self.address!r}; a program that runs outside the "
                "cluster is sent into it with `ray job submit`"
            )


def check_engine(settings: Any, *, plays: bool = True) -> None:
    """Refuse an unknown engine, and Ray without processes or where nothing ``plays`` or imagines elsewhere; SettingError."""
    one_of("engine", settings.engine, (LOCAL, RAY))
    if settings.engine == RAY and not plays:
        raise SettingError(f"engine={RAY}: suite={settings.suite} has nothing for other nodes to do; leave engine out")
    if settings.engine == RAY and not settings.workers:
        raise SettingError("workers: 0 works in this process, engine=ray on the cluster; give workers=1 or more")


def engine_of(settings: Any) -> Engine:
    """The engine of a command's settings; MissingExtraError where Ray is not installed."""
    if settings.engine == LOCAL:
        from worldrl.simulators.process import LOCAL as LOCAL_ENGINE

        return LOCAL_ENGINE
    from worldrl.simulators.ray_engine import RayEngine

    return RayEngine(settings.ray.address, settings.ray.gpus)


def crew_of(settings: Any, place: Path) -> Crew | None:
    """Who computes a command's stages in the run directory ``place``; None for processes of this machine."""
    if settings.engine == LOCAL:
        return None
    from worldrl.recipes.ray_tasks import RayCrew
    from worldrl.simulators.ray_cluster import RayCluster

    return RayCrew(RayCluster(settings.ray.address), settings.ray.gpus, place)


def imaginers_of(settings: Any) -> Imaginers | None:
    """Who imagines besides a command's own process; None for processes of this machine."""
    if settings.engine == LOCAL:
        return None
    from worldrl.methods.rl.imagining_on_ray import RayImaginers
    from worldrl.simulators.ray_cluster import RayCluster

    return RayImaginers(RayCluster(settings.ray.address), settings.ray.gpus)
