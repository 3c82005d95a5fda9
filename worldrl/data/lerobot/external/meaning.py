"""What the numbers of an external LeRobotDataset mean: stated in its ``worldrl.json``, recognised where it is LIBERO's.

Every key of ``worldrl.json`` may be left out. What is not stated is recognised from the folder's own data or assumed, said
once on the terminal, and kept in every episode's ``meta``; what is unknown is one error with the whole file to write::

    robot       "libero", or an embodiment (``core.embodiment``)
    state       feature, or features one after another; "observation.state[0:6]" takes a part,
                "observation.state[gripper.pos]" one number by its name; numbers with the robot's names are ordered by them
    action      likewise
    command     likewise; left out it is LIBERO's measured pose, or the joints' last target
    cameras     {"scene": feature, "wrist": feature}: names here to features there; the main camera is "scene", else "head",
                and is camera 0 of an episode's frames wherever it stands here
    image_size  pixels that images are resized to: a number for square ones, else [rows, columns]
    fit         how they get that size: "stretch", "crop" or "letterbox" (``core.image_fit``)
    ``pictures``  "as they are", "turned" by 180 degrees, "flipped" (rows), "mirrored" (columns)
    gripper     {"open": -1, "closed": 1}: an action's number for either; or such pairs by the grippers' names
    clip_actions  true moves actions beyond the robot's range to it; false, the default, refuses them
    observed    "before" the row's action, or "after" it
    success     a feature that is above 0 where the task is fulfilled, "meta/episodes:COLUMN" of the episode table,
                "every episode", or "no episode"
    tasks       {instruction: task name}: only episodes of these instructions are kept, under these names
    leave_out   [3, 7]: numbers of episodes that are not read

LIBERO's layout is recognised by what it measures, not by names, which differ between publishers: 8 numbers of state and 7 of
action, the last two of the state a finger each, opposite and within 5 cm. Which gripper command closes is read off those
fingers: publishers have -1 and 1, and 1 and 0, for open and closed. A recording of worldrl that lerobot's tools edited has
lost its journal and keeps its header beside the feature ``action``; that header is then what is stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import ArtefactError
from worldrl.core.image_fit import Fit
from worldrl.core.storage.jsonfile import read_json
from worldrl.data.lerobot.external.bounds import clips
from worldrl.data.lerobot.external.cameras import read_cameras, read_image_size
from worldrl.data.lerobot.external.folder import ExternalFolder
from worldrl.data.lerobot.external.gripper import Ends
from worldrl.data.lerobot.external.images import TURNS
from worldrl.data.lerobot.external.robot import read_body
from worldrl.data.lerobot.external.selection import read_ours
from worldrl.data.lerobot.external.stated import Columns, Draft, choice
from worldrl.data.lerobot.external.success import read_success
from worldrl.data.lerobot.format import COMMAND, CONTACT, HEADER_COPY, IMAGE_PREFIX, SUCCESS, DatasetHeader

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Meaning:
    """How rows become episodes; see the module for what each is."""

    robot: AnyEmbodiment  # whose actions these are
    state: tuple[Columns, ...]  # features of the measured numbers
    action: tuple[Columns, ...]  # features of the action
    command: tuple[Columns, ...]  # features of the command; empty where it follows from state or actions
    cameras: Mapping[str, str]  # our name to feature, in the order of the episodes' cameras, the main one first
    image_size: tuple[int, int]  # rows and columns (pixels)
    fit: Fit  # how images get that size
    pictures: str  # how they are turned
    # Recorded numbers for open and for closed, of each gripper; None where they are the robot's own.
    gripper: Ends | None
    clip_actions: bool  # move actions beyond the robot's range to it
    observed: str  # `before` or `after`
    success: str  # feature, column of the episode table, `every episode` or `no episode`
    contact: str  # feature that says when the fingers touch a task object; empty where none does
    tasks: Mapping[str, str]  # instruction to name; empty keeps all
    assumed: tuple[str, ...]  # what no file states, in words

    def facts(self, folder: ExternalFolder) -> dict[str, Any]:
        """What an episode's ``meta`` keeps, as plain JSON values; the robot is in the dataset's header."""
        ends = [list(pair) for pair in self.gripper or ()]
        return {
            "folder": folder.path.resolve().name,
            "fps": folder.fps,
            "cameras": dict(self.cameras),
            "image_sizes": [list(folder.features[name].image_size) for name in self.cameras.values()],
            "image_size": list(self.image_size),
            "fit": self.fit.value,
            "pictures": self.pictures,
            "gripper": (ends[0] if len(ends) == 1 else ends) or None,
            "clip_actions": self.clip_actions,
            "observed": self.observed,
            "success": self.success,
            "assumed": list(self.assumed),
            **({"leave_out": left} if (left := sorted(folder.selection.leave_out)) else {}),
        }


def read_meaning(folder: ExternalFolder) -> Meaning:
    """Find out what a folder's numbers mean.

    SettingError for an impossible ``worldrl.json``, or with a whole one that opens the folder where something is
    missing; ArtefactError where a file cannot be read.
    """
    own = stated_by_header(folder)
    stated = {**own, **read_ours(folder.path)}
    draft = Draft(dict(stated))
    body = read_body(folder, stated, draft)
    cameras = read_cameras(folder, stated, draft)
    success = read_success(folder, stated, draft)
    draft.entries |= {"cameras": cameras, "success": success}
    image_size, fit = read_image_size(folder, stated, cameras, draft)
    meaning = Meaning(
        robot=body.robot,
        state=body.state,
        action=body.action,
        command=body.command,
        cameras=cameras,
        image_size=image_size,
        fit=fit,
        pictures=choice(folder, stated, "pictures", tuple(TURNS), draft, "images are taken as they are"),
        gripper=body.gripper,
        clip_actions=clips(folder, stated),
        observed=choice(
            folder, stated, "observed", (BEFORE, AFTER), draft, "a row shows what its action was decided on"
        ),
        success=success,
        contact=CONTACT if own and CONTACT in folder.features else "",
        tasks=folder.selection.tasks,
        assumed=tuple(draft.assumed),
    )
    draft.require_answers(folder)
    return meaning


def header_copy(folder: ExternalFolder) -> DatasetHeader | None:
    """The header copy in a recording that lerobot's tools edited; ArtefactError where it is damaged."""
    entry = read_json(folder.info, error=ArtefactError)["features"].get("action", {})
    if HEADER_COPY not in entry:
        return None
    try:
        return DatasetHeader.from_json(entry[HEADER_COPY])
    except (KeyError, TypeError, ValueError) as reason:
        raise ArtefactError(f"{folder.info}: features.action.{HEADER_COPY} is damaged ({reason})") from reason


def stated_by_header(folder: ExternalFolder) -> dict[str, Any]:
    """What :func:`header_copy` says of a folder, if there is one."""
    header = header_copy(folder)
    if header is None:
        return {}
    cameras = {name: IMAGE_PREFIX + name for name in header.cameras if IMAGE_PREFIX + name in folder.features}
    columns = {"command": COMMAND, "success": SUCCESS}
    kept = {key: name for key, name in columns.items() if name in folder.features}
    found = {"robot": header.embodiment.to_json(), "pictures": "as they are", "observed": BEFORE, **kept}
    return found | ({"cameras": cameras} if cameras else {})
