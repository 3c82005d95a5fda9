"""The observation contract: cameras, measured state and command by name, for datasets, policies and world models.

``image`` is the main camera, ``<camera>_image`` another, ``state`` is measured, ``command`` was last commanded.
Everyone has ``image``, ``command`` and the instruction; ``more`` names the rest: further cameras in order, then
``state``. A *sheet* is one image with several cameras' views below each other, ``[..., V Y, X, 3]``, as world models
imagine it. Shapes: ``V`` views, ``Y X`` pixels of one view, ``S`` measured numbers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.embodiment import COMMAND_NAMES, STATE_NAMES
from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.core.storage.jsonfile import difference

MAIN_CAMERAS = ("scene", "head")  # Those whose image an environment calls `image`; another camera's is `<camera>_image`
IMAGE, STATE, COMMAND = "image", "state", "command"
SUFFIX = "_image"
NOT_OBSERVED, MEASURED = "none", "measured"
STATE_INPUTS = (NOT_OBSERVED, MEASURED)  # Values of the setting `state`
OBSERVATION = "observation"  # Key of an :class:`ObservationSpec` in a header and in a `config.json`
_POSE_UNITS = ("m", "m", "m", "rad", "rad", "rad")
OWN_UNIT = "robot's"  # Unit of a number whose recording did not name one


@dataclass(frozen=True)
class CameraSpec:
    """One camera's images (pixels)."""

    height: int
    width: int


@dataclass(frozen=True)
class VectorSpec:
    """Numbers by name, each with its unit."""

    names: tuple[str, ...]
    units: tuple[str, ...]


@dataclass(frozen=True)
class ObservationSpec:
    """What is observed at a control step; ``state`` and ``command`` are None where there is none.

    ``fit`` is how images of another aspect got their size (``core.image_fit``); empty where nobody says.
    """

    cameras: dict[str, CameraSpec]
    state: VectorSpec | None
    command: VectorSpec | None
    instruction: bool = True
    fit: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = json.loads(json.dumps(asdict(self)))
        return plain if self.fit else {name: part for name, part in plain.items() if name != "fit"}

    @classmethod
    def of(
        cls, actions: ActionSpec, images: Sequence[str], size: tuple[int, int], *, state: bool, fit: str = ""
    ) -> "ObservationSpec":
        """Describe the observations of a robot with ``images`` of ``size`` (rows, columns)."""
        return cls(
            cameras={name: CameraSpec(*size) for name in images},
            state=vector_spec(actions, STATE_NAMES, "m", "m") if state else None,
            command=vector_spec(actions, COMMAND_NAMES, "1"),
            fit=fit,
        )

    def require_stored(self, config: Mapping[str, Any], where: object) -> None:
        """SettingError for a stored config that states another observation; one from before the key states none."""
        if OBSERVATION not in config:
            return
        if differing := difference({OBSERVATION: self.to_json()}, {OBSERVATION: config[OBSERVATION]}):
            raise SettingError(f"{where}: its {OBSERVATION} differs from its other entries: {differing}; save it again")


def vector_spec(actions: ActionSpec, names: tuple[str, ...], *units: str) -> VectorSpec:
    """Describe a robot's state or command: joints as in its actions, or a tool's ``names``, the last in ``units``."""
    if actions.absolute:
        return VectorSpec(actions.names, (OWN_UNIT,) * actions.size)
    return VectorSpec(names, (*_POSE_UNITS, *units))


def image_name(camera: str) -> str:
    """Name of a camera's image among the observations."""
    return IMAGE if camera in MAIN_CAMERAS else camera + SUFFIX


def camera_of(name: str, cameras: Sequence[str]) -> str:
    """Return the camera among ``cameras`` whose image has this name; ArtefactError for none."""
    for camera in cameras:
        if image_name(camera) == name:
            return camera
    raise ArtefactError(
        f"{name}: no camera of this name was recorded; the recording has {', '.join(map(image_name, cameras))}"
    )


def check_inputs(cameras: Sequence[str], state: str, where: str) -> None:
    """Check ``cameras`` (the main one first, each once) and ``state`` of a policy or a world model; SettingError."""
    if not cameras or cameras[0] != IMAGE or len(set(cameras)) < len(cameras):
        raise SettingError(f"{where}cameras: must be {IMAGE} first, each camera once, got [{', '.join(cameras)}]")
    for name in cameras[1:]:
        if not name.endswith(SUFFIX) or name == SUFFIX:
            raise SettingError(f"{where}cameras: {name!r} is no image; give names such as wrist{SUFFIX}")
    if state not in STATE_INPUTS:
        raise SettingError(f"{where}state: unknown value {state!r}{nearest(state, STATE_INPUTS)}")


def further(cameras: Sequence[str], state: str) -> tuple[str, ...]:
    """Observations besides image, command and instruction: the other cameras, then the state."""
    return (*cameras[1:], *((STATE,) if state == MEASURED else ()))


def images_among(more: Sequence[str]) -> tuple[str, ...]:
    """Names of all cameras' images, of what is observed besides the main one."""
    return (IMAGE, *(name for name in more if name != STATE))


def stack_views(views: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Lay views ``[..., Y, X, 3]`` of one size below each other, as a sheet ``[..., V Y, X, 3]``."""
    return views[0] if len(views) == 1 else np.concatenate(views, axis=-3)


def split_views(sheet: Tensor, more: Sequence[str]) -> dict[str, Tensor]:
    """Cut a sheet ``[..., V Y, X, 3]`` into its views ``[..., Y, X, 3]``, by the names of their images."""
    names = images_among(more)
    return dict(zip(names, sheet.chunk(len(names), dim=-3), strict=True))


def beside(left: ObservationSpec, left_name: str, right: ObservationSpec, right_name: str) -> str:
    """Show two specs side by side, one line per observation."""
    rows = [(left_name, right_name)]
    first, second = _lines(left), _lines(right)
    rows += [(first.get(name, "-"), second.get(name, "-")) for name in dict.fromkeys([*first, *second])]
    width = max(len(entry) for entry, _ in rows)
    return "\n".join(f"  {entry:<{width}} | {other}" for entry, other in rows)


def _lines(spec: ObservationSpec) -> dict[str, str]:
    lines = {
        name: f"{name} {camera.height}x{camera.width} {spec.fit}".rstrip() for name, camera in spec.cameras.items()
    }
    vectors = {STATE: spec.state, COMMAND: spec.command}
    return lines | {name: f"{name} ({len(v.names)})" for name, v in vectors.items() if v is not None}


def require_named(wanted: Sequence[str], shown: Sequence[str]) -> None:
    """SettingError, with both lists, for a policy that observes more than a world model imagines besides the usual."""
    if set(wanted) - set(shown):
        takes, shows = ((IMAGE, *names) for names in (wanted, shown))
        raise SettingError(
            f"the policy does not fit the world model\n  the policy takes {', '.join(takes)} | the world model shows "
            f"{', '.join(shows)}\ntrain one of them with the cameras and the state of the other"
        )


def require_consecutive(
    n_obs_steps: int, frame_stride: int, memory_frames: int, who: str, dynamics: str = "world_model.dynamics"
) -> None:
    """SettingError, with the setting of ``dynamics`` to change, for an observer of more steps than a world model keeps."""
    if n_obs_steps > 1 and frame_stride > 1:
        raise SettingError(
            f"{who} observes {n_obs_steps} consecutive control steps (n_obs_steps), and the world model imagines one of "
            f"{frame_stride}; train one with {dynamics}.frame_stride=1"
        )
    if n_obs_steps > memory_frames:
        raise SettingError(
            f"{who} observes {n_obs_steps} control steps (n_obs_steps), and the world model remembers {memory_frames}; "
            f"train one with {dynamics}.memory_frames={n_obs_steps}"
        )


def require_observed(wanted: ObservationSpec, shown: ObservationSpec, who: str, where: str) -> None:
    """SettingError, with both specs side by side, for an observer who needs an image, state or command not shown."""
    cameras = all(shown.cameras.get(name) == camera for name, camera in wanted.cameras.items())
    vectors = all(
        need in (None, given) for need, given in ((wanted.state, shown.state), (wanted.command, shown.command))
    )
    if not (cameras and vectors):
        raise SettingError(
            f"{who} does not fit {where}\n{beside(wanted, f'{who} takes', shown, f'{where} shows')}\n"
            "train one of them with the cameras and the state of the other"
        )
