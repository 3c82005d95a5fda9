"""``policy=ws://host:port``: the address of a policy behind OpenPI's websocket protocol, with its settings.

::

    ws://127.0.0.1:8000?keys=droid&chunk=5&size=224&key.observation/state=command&token_file=token.txt

=============  ======================================================================================================
``keys``       which names the server has for what it observes, and what its actions are: ``libero`` or ``droid``, as
               in OpenPI's examples; a server of worldrl says it itself
``key.NAME``   replaces or adds one name: ``image``, ``wrist_image``, ``state``, ``command`` or ``prompt``, numbers also
               in part (``state[0:7]``); empty sends nothing under that name
``chunk``      actions taken of each answer; without it all
``size``       pixels per side of the images sent
``timeout_s``  longest wait for an answer (s)
``token_file`` file with the token of the server
=============  ======================================================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.errors import SettingError, nearest
from worldrl.core.observation import COMMAND, IMAGE, STATE, SUFFIX

PROMPT = "prompt"
_REMOTE = re.compile(r"^(wss?):/{1,2}(?=[^/])")  # a Path joins the two slashes
_ADDRESS = re.compile(r"wss?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_SOURCE = re.compile(r"(\w+)(?:\[([0-9]{1,4}):([0-9]{1,4})\])?")
DROID_ACTIONS = ActionSpec(
    names=(*(f"joint {number} velocity" for number in range(1, 8)), "gripper"),
    low=(*(-1.0,) * 7, 0.0),
    high=(1.0,) * 8,
    targets=(*(False,) * 7, True),
    grippers=(7,),
    gripper_open=0.0,
    gripper_closed=1.0,
    opening_unit=0.1,
)
"""Seven joint velocities and the gripper's position, as OpenPI's DROID example executes them."""


@dataclass(frozen=True)
class Names:
    """A kind of server: its names for observations, and its actions."""

    keys: Mapping[str, str]
    actions: ActionSpec


NAMES: Mapping[str, Names] = {
    "libero": Names(
        {
            "observation/image": IMAGE,
            "observation/wrist_image": f"wrist{SUFFIX}",
            "observation/state": STATE,
            "prompt": PROMPT,
        },
        TOOL_ACTIONS,
    ),
    "droid": Names(
        {
            "observation/exterior_image_1_left": IMAGE,
            "observation/wrist_image_left": f"wrist{SUFFIX}",
            "observation/joint_position": f"{STATE}[0:7]",
            "observation/gripper_position": f"{STATE}[7:8]",
            "prompt": PROMPT,
        },
        DROID_ACTIONS,
    ),
}
"""OpenPI's examples, by name."""


def is_remote(policy: str | Path) -> bool:
    """Whether a policy is an address rather than a folder."""
    return _REMOTE.match(str(policy)) is not None


def with_slashes(policy: str | Path) -> str:
    """Return an address with both slashes, of which a Path joins two."""
    return _REMOTE.sub(r"\1://", str(policy))


def refuse_temperature(policy: str | Path, temperature: float | None) -> None:
    """SettingError for a temperature with an address: its server decides how it draws."""
    if temperature is not None and is_remote(policy):
        raise SettingError(f"temperature: the server of {policy} decides how it draws; leave temperature out")


@dataclass(frozen=True)
class Address:
    """Where a policy is served, and the settings in its address; ``keys`` empty takes the server's word, else libero."""

    url: str
    keys: str = ""
    named: tuple[tuple[str, str], ...] = ()
    chunk: int | None = None
    size: int | None = None
    timeout_s: float = 120.0
    token_file: str = ""

    @classmethod
    def parse(cls, policy: str | Path) -> Self:
        """Read an address; SettingError for another form, an unknown setting or a value out of range."""
        url, _, query = with_slashes(policy).partition("?")
        if not _ADDRESS.fullmatch(url):
            raise SettingError(
                f"policy: {url.rpartition('@')[2]!r} is no address of a server; give ws://HOST:PORT without user or password, and a token by "
                "?token_file=FILE"
            )
        found: dict[str, Any] = {"named": ()}
        for item in filter(None, query.split("&")):
            name, _, value = item.partition("=")
            if name.startswith("key."):
                found["named"] += ((name.removeprefix("key."), _checked_source(name, value)),)
            elif name in _PARSED and name not in found:
                found[name] = _PARSED[name](name, value)
            else:
                again = "is given twice" if name in found else f"is unknown{nearest(name, [*_PARSED, 'key.NAME'])}"
                raise SettingError(f"policy: {name!r} in {url}?... {again}")
        return cls(url, **found)

    def sources(self, said: Mapping[str, str] | None) -> dict[str, str]:
        """Name → what is sent under it: of ``said``, the server's own list, else of ``keys``; then ``key.NAME``."""
        base = said if said is not None and not self.keys else NAMES[self.keys or "libero"].keys
        merged = {**base, **dict(self.named)}
        return {name: source for name, source in merged.items() if source}


def part_of(source: str) -> tuple[str, slice]:
    """Name and numbers of a source such as ``state[0:7]``."""
    matched = _SOURCE.fullmatch(source)
    if matched is None:
        raise SettingError(
            f"{source!r} is no observation; give image, wrist_image, state, command, state[0:7] or prompt"
        )
    name, first, last = matched.groups()
    return name, slice(None) if first is None else slice(int(first), int(last))


def _checked_source(name: str, value: str) -> str:
    if not value:
        return value
    try:
        source, numbers = part_of(value)
    except SettingError as error:
        raise SettingError(f"policy: {name}: {error}") from error
    known = source in (IMAGE, STATE, COMMAND, PROMPT) or source.endswith(SUFFIX)
    if not known or (numbers != slice(None) and source not in (STATE, COMMAND)):
        raise SettingError(
            f"policy: {name}: {value!r} is no observation; give image, wrist_image, state, command, state[0:7] or prompt"
        )
    return value


def _whole(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:9]) <= 4096:
        raise SettingError(f"policy: {name}: must be a whole number from 1 to 4096, got {value!r}")
    return int(value)


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 3600:
        raise SettingError(f"policy: {name}: must be above 0 and at most 3600 s, got {value!r}")
    return seconds


def _keys(name: str, value: str) -> str:
    if value not in NAMES:
        raise SettingError(f"policy: {name}: unknown {value!r}{nearest(value, NAMES)}")
    return value


def _file(name: str, value: str) -> str:
    if not value:
        raise SettingError(f"policy: {name}: needs the path of a file")
    return value


_PARSED = {"keys": _keys, "chunk": _whole, "size": _whole, "timeout_s": _seconds, "token_file": _file}
