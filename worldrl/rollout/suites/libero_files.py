"""LIBERO's own demonstrations, HDF5 files in robomimic's layout with one task each, read as episodes.

Layout of a file::

    data              attributes: bddl_file_name, whose stem is the task; macros_image_convention, "opengl"
    data/demo_K       actions [N, 7], rewards [N]; states [N, D]: time, joints, ... of the simulator before each action
    data/demo_K/obs   agentview_rgb, eye_in_hand_rgb uint8 [N, Y, X, 3], rows from bottom to top; ee_pos [N, 3] (m),
                      ee_ori [N, 3] (axis-angle, rad), gripper_states [N, 2] (m), joint_states [N, 7] (rad)

Row ``i`` of ``obs`` is the result of action ``i``, not its input: LIBERO's script writes what ``step`` returns. Files
that others regenerated from these (OpenVLA's without idle steps) have it the other way round. The arm's joints show
which kind a file is, since ``states`` are those before the action in both::

    file          obs 0   obs 1  ...             LIBERO's: action 0 has no frame before it and is left out
                a0  |   a1  |   a2
    file          obs 0   obs 1  ...             regenerated: the last action has no frame after it and is left out;
                    |  a0   |  a1                its success counts for the last frame

Contact of the fingers was not recorded and is false everywhere. Images and states are converted as in the worker
(``workers/libero/observation.py``).

Shapes legend: ``N`` rows of a file, ``T`` actions, ``V`` cameras, ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.core.types import Episode
from worldrl.data.offline.columns import column, fault
from worldrl.data.offline.hdf5 import Hdf5
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.workers.libero import facts
from worldrl.workers.libero.observation import command_vector, robot_observation, state_vector, turn
from worldrl.workers.libero.package import task_instruction

SUFFIX = ".hdf5"
SOURCE, START = "demonstrations", "start_state"
"""Label of these episodes, and the key of their meta for the simulator's state at the first frame."""
IMAGES = {"scene": "obs/agentview_rgb", "wrist": "obs/eye_in_hand_rgb"}
WIDTHS = {"actions": 7, "obs/ee_pos": 3, "obs/ee_ori": 3, "obs/gripper_states": 2, "obs/joint_states": 7, "states": 0}
ARM = slice(1, 8)
"""The arm's joints in a flattened simulator state: after the time, before everything else."""
SAME_RAD, DISTINCT = 0.05, 0.5
"""Largest mean distance of equal joints (rad), since LIBERO replayed its recordings with drift; and the largest ratio of the
two distances that separates before from after."""
ACTION_TOLERANCE = 1e-6
CLIPPED = "actions_clipped"
"""Key of the meta: rows of the file whose actions were moved to [-1, 1]; absent where that was not asked for."""


@dataclass(frozen=True)
class Demonstration:
    """One demonstration in its HDF5 file, ``demo_<number>``."""

    file: Path
    task: str
    number: int

    def spec(self, seed: int) -> EpisodeSpec:
        """Identity of the episode; its initial state is the file's own, not one that the suite stores."""
        return EpisodeSpec(self.task, self.number, seed, source=SOURCE)


def find_demonstrations(folder: Path, suite: str, tasks: Sequence[str]) -> list[Demonstration]:
    """List every demonstration, in the order of the suite's ``tasks`` (all of them) and of the file's numbers.

    ``folder`` holds one file per task, or is one such file. Raises ArtefactError (a file that cannot be read, is of
    another suite, or of a task that another file has). Raises MissingExtraError (h5py is not installed). Raises
    SettingError (no such file there).
    """
    files = [folder] if folder.is_file() else sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise SettingError(f"demonstrations: no {SUFFIX} file in {folder}; give the folder of {suite}'s files")
    found: dict[str, list[Demonstration]] = {}
    for file in files:
        task, numbers = _contents(file, suite, tasks)
        if task in found:
            raise ArtefactError(f"{file}: holds task {task} as {found[task][0].file} does; keep one of them")
        found[task] = [Demonstration(file, task, number) for number in numbers]
    return [item for task in tasks for item in found.get(task, [])]


def _contents(file: Path, suite: str, tasks: Sequence[str]) -> tuple[str, list[int]]:
    with Hdf5(file) as opened:
        if "data" not in opened.names(opened.content, "all"):
            raise fault(file, "all", "data", "is missing; LIBERO's files have one group of this name")
        data = opened.group(opened.content, "data", "all")
        names = opened.names(data, "all")
        given, convention = (
            opened.text(data, name, usual)
            for name, usual in (("bddl_file_name", ""), ("macros_image_convention", "opengl"))
        )
    task = Path(given).stem or file.stem.removesuffix("_demo")
    if task not in tasks:
        origin = "attribute bddl_file_name" if given else "its name"
        raise ArtefactError(f"{file}: {origin} gives task {task!r}, which {suite} does not have{nearest(task, tasks)}")
    if convention != "opengl":
        raise fault(file, "all", "macros_image_convention", f"is {convention!r}; only 'opengl' images are known here")
    if not names or not all(name.startswith("demo_") and name[5:].isdigit() for name in names):
        raise fault(file, "all", "data", f"must hold demo_0, demo_1, ..., got {names[:3]}")
    return task, sorted(int(name[5:]) for name in names)


def read_demonstration(
    demonstration: Demonstration, *, cameras: Sequence[str], seed: int, clip_actions: bool = False
) -> Episode:
    """Read one demonstration; its meta holds its spec, the file, and the simulator's state at its first frame.

    ``cameras`` are ``scene`` and ``wrist``, in the order of the frames' axis ``V``. ``seed`` is part of the identity;
    nothing is drawn. ``clip_actions`` moves actions beyond [-1, 1] to it. Raises ArtefactError (a missing field, a wrong shape, a number that is not finite, an action
    outside [-1, 1]; the message names file, demonstration and field).
    """
    where = f"{demonstration.file}/data/demo_{demonstration.number}"
    raw = _fields(demonstration, where, cameras)
    beyond = _beyond(raw["actions"], demonstration.number, where, clip=clip_actions)
    after = follows_action(raw["obs/joint_states"], raw["states"], where)
    actions, rewards = np.clip(raw["actions"], -1, 1), (raw["rewards"] > 0).astype(np.float32)
    grippers = actions[:, 6] if after else np.append(np.float32(facts.NO_OP[6]), actions[:-1, 6])
    if not after:
        rewards[-2] = max(rewards[-2:])
    used = slice(1, None) if after else slice(None, -1)
    arms = (raw[f"obs/{name}"] for name in ("ee_pos", "ee_ori", "gripper_states"))
    observed = [robot_observation(*row) for row in zip(*arms, strict=True)]
    success, start = bool((rewards[used] > 0).any()), raw["states"][int(after)].tolist()
    return Episode(
        frames=np.stack([np.stack([turn(image) for image in raw[IMAGES[camera]]]) for camera in cameras], axis=1),
        state=np.stack([state_vector(obs) for obs in observed]),
        command=np.stack([command_vector(obs, float(g)) for obs, g in zip(observed, grippers, strict=True)]),
        action=actions[used],
        reward=rewards[used],
        contact=np.zeros(len(actions), np.bool_),
        terminated=success,
        truncated=not success,
        instruction=task_instruction(demonstration.task),
        task=demonstration.task,
        cameras=tuple(cameras),
        meta={**demonstration.spec(seed).to_json(), "restarted": False, "file": demonstration.file.name, START: start}
        | ({CLIPPED: beyond} if clip_actions else {}),
    )


def follows_action(joints: NDArray[np.float32], states: NDArray[np.float64], where: str) -> bool:
    """Whether row ``i`` of a file's observations is the result of action ``i``, by the arm's joints.

    ``joints`` are observed, ``[N, 7]`` (rad); ``states`` are the simulator's before each action, ``[N, D]``. Raises
    ArtefactError (the observations are neither those before the actions nor those after).
    """
    before = float(np.abs(joints[1:] - states[1:, ARM]).mean())
    after = float(np.abs(joints[:-1] - states[1:, ARM]).mean())
    nearer, farther = sorted((before, after))
    if nearer > min(SAME_RAD, DISTINCT * farther):
        raise fault(
            where,
            "all",
            "obs/joint_states",
            f"lies {before:.3f} rad from the joints in 'states' before each action and {after:.3f} rad from those after; one "
            "of them must be the same, or the file mixes demonstrations",
        )
    return after < before


def _fields(demonstration: Demonstration, where: str, cameras: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read and check every field of an episode."""
    names = [*WIDTHS, "rewards", *(IMAGES[camera] for camera in cameras)]
    raw, number = dict[str, NDArray[Any]](), demonstration.number
    with Hdf5(demonstration.file, source=Path(where)) as file:
        for name in names:
            found = file.numbers(file.content, f"data/demo_{number}/{name}", number, field=name)
            if found is None:
                raise fault(where, number, name, f"is missing; needed are {', '.join(names)}")
            raw[name] = found
    return _checked(raw, number, where)


def _checked(raw: dict[str, NDArray[Any]], number: int, where: str) -> dict[str, NDArray[Any]]:
    rows = len(raw["actions"]) if raw["actions"].ndim else 0
    if rows < 2:
        raise fault(where, number, "actions", f"has {rows} rows; a demonstration has at least 2")
    exact = raw["states"]
    for name, width in (*WIDTHS.items(), ("rewards", None)):
        raw[name] = column(raw[name], rows=rows, width=width, source=where, episode=number, name=name)
    if raw["states"].shape[1] < ARM.stop:
        raise fault(where, number, "states", f"has {raw['states'].shape[1]} numbers, too few for time and seven joints")
    raw["states"] = np.asarray(exact, np.float64)
    for name in set(raw) & set(IMAGES.values()):
        shape = raw[name].shape
        if raw[name].dtype != np.uint8 or len(shape) != 4 or shape[0] != rows or shape[1] != shape[2] or shape[3] != 3:
            raise fault(where, number, name, f"must be uint8 [{rows}, Y, Y, 3], got {raw[name].dtype} {list(shape)}")
    return raw


def _beyond(actions: NDArray[np.float32], number: int, where: str, *, clip: bool) -> int:
    """Count rows ``[N, 7]`` beyond [-1, 1]; ArtefactError for any where they are not clipped."""
    largest = np.abs(actions).max(axis=1)
    rows = int((largest > 1 + ACTION_TOLERANCE).sum())
    if rows and not clip:
        place = f"leaves [-1, 1] at step {int(largest.argmax())} ({largest.max():.3f}) and in {rows} of {len(actions)} steps"
        raise fault(where, number, "actions", f"{place}; clip_actions=true moves them to their bound")
    return rows
