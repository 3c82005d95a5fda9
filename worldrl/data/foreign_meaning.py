"""What the numbers of a foreign LeRobotDataset mean: stated in its ``worldrl.json``, recognised where it is LIBERO's.

Every key of ``worldrl.json`` may be left out. What is not stated is recognised from the folder's own data or assumed, said
once on the terminal, and kept in every episode's ``meta``; what cannot be told is an error with the line to write::

    robot       "libero", or an embodiment (``core.embodiment``)
    state       feature, or features one after another; "observation.state[0:6]" takes a part
    action      likewise
    command     likewise; left out it is LIBERO's measured pose, or the joints' last target
    cameras     {"scene": feature, "wrist": feature}: names here to features there, the main camera under its own name
    image_size  pixels that pictures are resized to: a number for square ones, else [rows, columns]
    pictures    "as they are", "turned" by 180 degrees, "flipped" (rows), "mirrored" (columns)
    gripper     {"open": -1, "closed": 1}: an action's number for either
    observed    "before" the row's action, or "after" it
    success     a feature that is above 0 where the task is fulfilled, "every episode", or "no episode"
    tasks       {sentence: task name}: only episodes of these sentences are kept, under these names
    leave_out   [3, 7]: numbers of episodes that are not read

LIBERO's layout is recognised by what it measures, not by names, which differ between publishers: 8 numbers of state and 7 of
action, the last two of the state a finger each, opposite and within 5 cm. Which gripper command closes is read off those
fingers: publishers have -1 and 1, and 1 and 0, for open and closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.core.types import MAIN_CAMERAS
from worldrl.data.foreign_folder import WHOLE, ForeignFolder
from worldrl.data.foreign_info import MAX_SIDE
from worldrl.data.foreign_pictures import TURNS
from worldrl.data.foreign_robot import Sample, read_command, read_gripper, read_robot, require_sizes
from worldrl.data.foreign_rows import unlisted
from worldrl.data.foreign_selection import read_ours
from worldrl.data.foreign_stated import OURS, Columns, choice, read_columns_of, unclear, wrong
from worldrl.data.lerobot_format import camera_role
from worldrl.data.libero_robot import libero_embodiment

EVERY, NONE, BEFORE, AFTER = "every episode", "no episode", "before", "after"
SUCCESS, REWARD = "next.success", "next.reward"


@dataclass(frozen=True)
class Meaning:
    """How rows become episodes; see the module for what each is.

    Attributes:
        robot: whose actions these are.
        state: features of the measured numbers.
        action: features of the action.
        command: features of the command; empty where it follows from state or actions.
        cameras: our name to feature, in the order of the episodes' cameras.
        image_size: rows and columns (pixels).
        pictures: how they are turned.
        gripper: an action's number for open and for closed; None where it is the robot's own.
        observed: ``before`` or ``after``.
        success: feature, ``every episode`` or ``no episode``.
        tasks: sentence to name; empty keeps all.
        assumed: what nobody stated, in sentences.
    """

    robot: AnyEmbodiment
    state: tuple[Columns, ...]
    action: tuple[Columns, ...]
    command: tuple[Columns, ...]
    cameras: Mapping[str, str]
    image_size: tuple[int, int]
    pictures: str
    gripper: tuple[float, float] | None
    observed: str
    success: str
    tasks: Mapping[str, str]
    assumed: tuple[str, ...]

    def told(self, folder: ForeignFolder) -> dict[str, Any]:
        """What an episode's ``meta`` keeps, as plain JSON values; the robot is in the dataset's header."""
        return {
            "folder": folder.path.resolve().name,
            "fps": folder.fps,
            "cameras": dict(self.cameras),
            "pictures": self.pictures,
            "gripper": list(self.gripper) if self.gripper else None,
            "observed": self.observed,
            "success": self.success,
            "assumed": list(self.assumed),
            **({"leave_out": left} if (left := sorted(folder.selection.leave_out)) else {}),
        }


def read_meaning(folder: ForeignFolder) -> Meaning:
    """Find out what a folder's numbers mean.

    Args:
        folder: its metadata.

    Raises:
        SettingError: ``worldrl.json`` says something impossible, or something that it must say is missing.
        ArtefactError: it, or a data file, cannot be read.
    """
    stated = read_ours(folder.path)
    state, action = (read_columns_of(folder, stated, name) for name in ("state", "action"))
    sample = Sample.read(folder, state, action)
    assumed: list[str] = []
    robot = read_robot(folder, stated, sample, assumed)
    require_sizes(folder, robot, state, action)
    cameras = _cameras(folder, stated)
    return Meaning(
        robot=robot,
        state=state,
        action=action,
        command=read_command(folder, stated, robot),
        cameras=cameras,
        image_size=_image_size(folder, stated, cameras),
        pictures=choice(folder, stated, "pictures", tuple(TURNS), assumed, "images are taken as they are"),
        gripper=read_gripper(folder, stated, robot, sample, assumed),
        observed=choice(
            folder, stated, "observed", (BEFORE, AFTER), assumed, "a row shows what its action was decided on"
        ),
        success=_success(folder, stated, robot, assumed),
        tasks=folder.selection.tasks,
        assumed=tuple(assumed),
    )


def _cameras(folder: ForeignFolder, stated: Mapping[str, Any]) -> dict[str, str]:
    there = [name for name, feature in folder.features.items() if feature.is_picture]
    if "cameras" not in stated:
        _require_colour(folder, there)
        roles = {name: camera_role(name, len(there)) for name in there}
        found = {str(role): name for name, role in roles.items()}
        if None in roles.values() or len(found) < len(there) or MAIN_CAMERAS[0] not in found:
            line = f'{{"cameras": {{"scene": "{there[0] if there else "observation.images.image"}"}}}}'
            raise unclear(folder, f"which camera is the main one is unknown; there are {there}", line)
        return dict(sorted(found.items()))  # scene before wrist
    cameras = stated["cameras"]
    if not isinstance(cameras, dict) or not set(cameras) & set(MAIN_CAMERAS):
        raise wrong(folder, "cameras", f"features by our names, one of them {' or '.join(MAIN_CAMERAS)}", cameras)
    for name in cameras.values():
        if name not in there:
            raise SettingError(f"{folder.path / OURS}: cameras: no image feature {name!r}{nearest(str(name), there)}")
        if not folder.features[name].is_colour:
            raise wrong(
                folder, "cameras", f"colour cameras; {name} has the shape {folder.features[name].shape}", cameras
            )
    return cameras


def _require_colour(folder: ForeignFolder, there: list[str]) -> None:
    """Ask which cameras are meant where one measures depth, or is one that ``info.json`` does not list."""
    colour = [name for name in there if folder.features[name].is_colour and not folder.features[name].depth]
    line = f'{{"cameras": {{"scene": "{colour[0] if colour else "observation.images.image"}"}}}}'
    if others := [name for name in there if name not in colour]:
        raise unclear(folder, f"of the cameras {there}, {others} show depth or other channels than colour", line)
    if lost := unlisted(folder):
        raise ArtefactError(f"{folder.info}: features does not list {lost}, which the tables have; {WHOLE}")


def _image_size(folder: ForeignFolder, stated: Mapping[str, Any], cameras: Mapping[str, str]) -> tuple[int, int]:
    sizes = {folder.features[name].image_size for name in cameras.values()}
    given = stated.get("image_size")
    if given is None:
        if len(sizes) > 1:
            raise unclear(folder, f"images have several sizes, {sorted(sizes)}", '{"image_size": 256}')
        return sizes.pop()
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given <= MAX_SIDE:
        oblong = sorted(size for size in sizes if size[0] != size[1])
        if oblong:
            raise unclear(
                folder,
                f"images of {oblong[0]} pixels would be distorted to a square",
                f'{{"image_size": [{given}, {given}]}}',
            )
        return given, given
    if (
        isinstance(given, list)
        and len(given) == 2
        and all(type(side) is int and 0 < side <= MAX_SIDE for side in given)
    ):
        return given[0], given[1]
    raise wrong(folder, "image_size", f"a number of pixels up to {MAX_SIDE}, or [rows, columns]", given)


def _success(folder: ForeignFolder, stated: Mapping[str, Any], robot: AnyEmbodiment, assumed: list[str]) -> str:
    if "success" in stated:
        given, flags = stated["success"], [f.name for f in folder.features.values() if f.shape == (1,)]
        if given not in (EVERY, NONE, *flags):
            raise wrong(
                folder, "success", f"{EVERY!r}, {NONE!r}, or a feature of one number ({', '.join(flags)})", given
            )
        return str(given)
    if SUCCESS in folder.features:
        return SUCCESS
    if REWARD in folder.features:
        raise unclear(
            folder,
            f"{REWARD!r} is there and {SUCCESS!r} is not, so what counts as success is unclear",
            f'{{"success": "{EVERY}"}}',
        )
    if robot != libero_embodiment():
        raise unclear(
            folder, f"nothing says which episodes succeeded: there is no {SUCCESS!r}", f'{{"success": "{EVERY}"}}'
        )
    assumed.append(
        f"every episode succeeded at its last frame, as published demonstrations of LIBERO do: no field says it (success: {EVERY!r})"
    )
    return EVERY
