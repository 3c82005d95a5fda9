"""Cameras of an external dataset under worldrl's names, the main one first, and the size of their images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.core.image_fit import WAYS, Fit, keeps_aspect
from worldrl.core.types import MAIN_CAMERAS
from worldrl.data.lerobot.external.folder import WHOLE, ExternalFolder
from worldrl.data.lerobot.external.info import MAX_SIDE
from worldrl.data.lerobot.external.rows import unlisted
from worldrl.data.lerobot.external.selection import OURS
from worldrl.data.lerobot.external.stated import Draft, wrong
from worldrl.data.lerobot.external.success import NAMES, REWARD
from worldrl.data.lerobot.format import camera_role

SIZE = 64
"""Pixels per side that policies and world models observe unless a setting says otherwise."""


def read_cameras(folder: ExternalFolder, stated: Mapping[str, Any], draft: Draft) -> dict[str, str]:
    """Return features by our names, the main camera first; SettingError where what is stated is impossible."""
    there = [name for name, feature in folder.features.items() if feature.is_image]
    if "cameras" in stated:
        return main_first(_stated_cameras(folder, stated["cameras"], there))
    if not there:
        raise SettingError(f"{folder.info}: there is no camera among its features ({', '.join(folder.features)})")
    there = _unasked(folder, there, draft)
    wrists = [name for name in there if camera_role(name, len(there)) == "wrist"]
    others = [name for name in there if name not in wrists]
    cameras = {MAIN_CAMERAS[0]: (others or there)[0]}
    cameras |= {"wrist": wrists[0]} if wrists and others else {}
    if len(others) != 1 or len(wrists) > 1:
        draft.ask(f"which camera is the main one is unknown; there are {there}")
    elif camera_role(others[0], len(there)) is None:
        draft.assume(f"{others[0]} is the main camera, beside {wrists[0]} (cameras)")
    return cameras


def _stated_cameras(folder: ExternalFolder, cameras: Any, there: list[str]) -> dict[str, str]:
    if not isinstance(cameras, dict) or not set(cameras) & set(MAIN_CAMERAS):
        raise wrong(folder, "cameras", f"features by our names, one of them {' or '.join(MAIN_CAMERAS)}", cameras)
    for name in cameras.values():
        if name not in there:
            raise SettingError(f"{folder.path / OURS}: cameras: no image feature {name!r}{nearest(str(name), there)}")
        if not folder.features[name].is_colour:
            rule = f"colour cameras; {name} has the shape {folder.features[name].shape}"
            raise wrong(folder, "cameras", rule, cameras)
    return cameras


def _unasked(folder: ExternalFolder, there: list[str], draft: Draft) -> list[str]:
    """Return the colour cameras; which are meant is asked where another one measures depth."""
    colour = [name for name in there if folder.features[name].is_colour and not folder.features[name].depth]
    others = [name for name in there if name not in colour]
    if lost := unlisted(folder, (*NAMES, REWARD)):
        raise ArtefactError(f"{folder.info}: features does not list {lost}, which the tables have; {WHOLE}")
    if not colour:
        raise SettingError(
            f"{folder.info}: its cameras {others} show depth or other channels than colour, and none else is there"
        )
    if others:
        draft.ask(f"of the cameras {there}, {others} show depth or other channels than colour")
    return colour


def main_first(cameras: Mapping[str, str]) -> dict[str, str]:
    """Put the main camera before the others, which keep their order: consumers of one camera take the first."""
    main = next(name for name in MAIN_CAMERAS if name in cameras)
    return {main: cameras[main], **cameras}


def read_image_size(
    folder: ExternalFolder, stated: Mapping[str, Any], cameras: Mapping[str, str], draft: Draft
) -> tuple[tuple[int, int], Fit]:
    """Return rows and columns that images get, the folder's where none are stated, and how; SettingError."""
    sizes = sorted({folder.features[name].image_size for name in cameras.values()})
    size, fit = _stated_size(folder, stated.get("image_size")), _stated_fit(folder, stated)
    if size is None:
        side = min(SIZE, sizes[0][0]) if len(sizes) == 1 and sizes[0][0] == sizes[0][1] else SIZE
        draft.entries["image_size"] = [side, side]
        if len(sizes) > 1:
            draft.ask(f"images have several sizes, {sizes}")
    distorted = [own for own in sizes if not keeps_aspect(own, size or (SIZE, SIZE))]
    if distorted:
        draft.entries["fit"] = (fit or Fit.letterbox).value
    if distorted and size is not None and fit is None:
        if type(stated["image_size"]) is int:
            draft.ask(
                f"images of {distorted[0]} pixels would be distorted to a square; fit must be one of {', '.join(WAYS)}"
            )
        draft.assume(f"images of {distorted[0]} pixels are stretched to {size} (fit: {Fit.stretch.value!r})")
    return size or sizes[0], fit or Fit.stretch


def _stated_size(folder: ExternalFolder, given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    sides = [given, given] if type(given) is int else given if isinstance(given, list) else []
    if len(sides) == 2 and all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
        return sides[0], sides[1]
    raise wrong(folder, "image_size", f"a number of pixels up to {MAX_SIDE}, or [rows, columns]", given)


def _stated_fit(folder: ExternalFolder, stated: Mapping[str, Any]) -> Fit | None:
    given = stated.get("fit")
    if given is None:
        return None
    if given not in WAYS:
        raise wrong(folder, "fit", f"one of {', '.join(map(repr, WAYS))}", given)
    if "image_size" not in stated:
        raise wrong(folder, "fit", "beside image_size, to which images are brought", given)
    return Fit(given)
