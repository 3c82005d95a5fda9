"""``RemotePolicy``: a policy behind OpenPI's websocket protocol, usable wherever a policy is measured.

A server says in its metadata what it is, if it is worldrl's (key ``worldrl``, :func:`served_metadata`). Of others
(OpenPI's) the address says it. One observation is sent at the start in any case: the answer shows the number of actions.

Shapes legend: ``B`` rows, ``H`` actions of an answer, ``L`` those taken, ``A`` numbers of an action.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import RemoteError, SettingError
from worldrl.core.observation import COMMAND, IMAGE, STATE, SUFFIX, further
from worldrl.core.storage.jsonfile import digest
from worldrl.core.storage.typed import from_plain
from worldrl.core.types import Chunk, CorrelatedNoise, PolicyObs
from worldrl.policies.lerobot.inputs import measured_size
from worldrl.policies.remote.address import NAMES, PROMPT, Address, part_of
from worldrl.policies.remote.link import Link
from worldrl.policies.remote.packing import MAX_SIDE, one_line, shown

OURS, KIND = "worldrl", "policy"
SIZE = 224
"""Pixels per side of the images that OpenPI's examples send."""
T = TypeVar("T")
PROBE = "say how many actions you give"


@dataclass(frozen=True)
class Served:
    """What worldrl's server says of its policy, in its metadata under ``worldrl``.

    ``keys`` maps the server's names to observations, ``image`` is rows and columns, ``hash`` identifies weights,
    settings and decoding.
    """

    kind: str
    keys: dict[str, str]
    image: tuple[int, int]
    actions: ActionSpec
    hash: str


def served_metadata(served: Served) -> dict[str, Any]:
    """Return the metadata of a server of worldrl's."""
    plain = {**vars(served), "image": list(served.image), "actions": served.actions.to_json()}
    return {OURS: plain}


@dataclass(frozen=True)
class Contract:
    """What a remote policy observes and answers: by its own word, its address, and one probe."""

    sources: Mapping[str, str]
    image: tuple[int, int]
    actions: ActionSpec
    chunk_length: int
    first: bytes  # the message with the metadata

    @property
    def hash(self) -> str:
        """Identity of who answers, and of what is sent; weights behind an address are as the metadata names them."""
        return digest([hashlib.sha256(self.first).hexdigest(), dict(self.sources), list(self.image)])

    @property
    def names(self) -> list[str]:
        """Observations that it wants."""
        return list(dict.fromkeys(part_of(source)[0] for source in self.sources.values()))

    @property
    def more(self) -> tuple[str, ...]:
        """Observations besides image, command and instruction."""
        images = [IMAGE, *(name for name in self.names if name.endswith(SUFFIX))]
        return further(images, "measured" if STATE in self.names else "none")

    def request(self, observed: Mapping[str, Any]) -> dict[str, Any]:
        """What is sent for one observation; SettingError where it lacks something or has another shape."""
        return {name: self._part(name, source, observed) for name, source in self.sources.items()}

    def _part(self, name: str, source: str, observed: Mapping[str, Any]) -> Any:
        base, numbers = part_of(source)
        value = observed.get(base)
        if base == PROMPT:
            return value
        if isinstance(value, np.ndarray) and value.shape == self._shape(base):
            return np.ascontiguousarray(value[numbers] if value.ndim == 1 else value)
        table = "\n".join(
            f"  {key:<36} {part:<14} {list(self._shape(part_of(part)[0]))} | {shown(observed.get(part_of(part)[0]))}"
            for key, part in self.sources.items()
        )
        raise SettingError(
            f"{name}: the remote policy takes what is not shown like that\n  the server's name, what is sent | shown here\n{table}"
        )

    def _shape(self, base: str) -> tuple[int, ...]:
        if base == STATE:
            return (measured_size(self.actions),)
        return (self.actions.size,) if base == COMMAND else () if base == PROMPT else (*self.image, 3)

    def example(self) -> dict[str, Any]:
        """An observation of zeros."""
        names = [name for name in self.names if name != PROMPT]
        kinds = {name: np.float32 if name in (STATE, COMMAND) else np.uint8 for name in names}
        return {**{name: np.zeros(self._shape(name), kind) for name, kind in kinds.items()}, PROMPT: PROBE}


def open_contract(link: Link) -> Contract:
    """Connect, and find out what a policy observes and answers.

    Raises RemoteError (there is no such server, or it answers wrongly) and SettingError (its answer does not fit the
    address; both sides are named).
    """
    link.open()
    address, said = link.address, _said(link)
    names = NAMES[address.keys or "libero"]
    size = address.size or SIZE
    image = (size, size) if said is None else said.image
    if said is not None and address.size not in (None, *said.image):
        raise SettingError(f"policy: size={address.size}, and the policy at {address.url} takes {said.image} pixels")
    actions = names.actions if said is None else said.actions
    sources = address.sources(None if said is None else said.keys)
    found = Contract(sources, image, actions, 1, link.first or b"")
    horizon = len(actions_of(link, found, found.example()))
    chunk = address.chunk or horizon
    if chunk > horizon:
        raise SettingError(f"policy: chunk={chunk}, and {address.url} answers {horizon} actions")
    return replace(found, chunk_length=chunk)


@lru_cache(maxsize=64)
def contract(address: Address) -> Contract:
    """:func:`open_contract` on a connection of its own, once for each address in a process."""
    link = Link(address)
    try:
        return open_contract(link)
    finally:
        link.close()


def said_by(link: Link, record: type[T], kind: str) -> T | None:
    """Read what a server of worldrl's says of itself, None of others; RemoteError where it serves something else."""
    where, found = f"{link.address.url}: metadata.{OURS}", link.metadata.get(OURS)
    if OURS not in link.metadata:
        return None
    if isinstance(found, dict) and found.get("kind") != kind:
        raise RemoteError(f"{link.address.url}: serves a {one_line(found.get('kind'))}, not a {kind}")
    try:
        return from_plain(record, found, where=where, error=RemoteError)
    except TypeError as error:  # an array
        raise RemoteError(f"{where}: {one_line(error)}") from None


def _said(link: Link) -> Served | None:
    said, where = said_by(link, Served, KIND), f"{link.address.url}: metadata.{OURS}"
    if said is None:
        return None
    try:
        parts = [part_of(source) for source in said.keys.values()]
    except SettingError as error:
        raise RemoteError(f"{where}: keys: {error}") from None
    if not parts or not all(1 <= side <= MAX_SIDE for side in said.image):
        raise RemoteError(
            f"{where}: must hold keys and an image of 1 to {MAX_SIDE} pixels per side, it is {said.image}"
        )
    return said


def actions_of(link: Link, wanted: Contract, observed: Mapping[str, Any]) -> NDArray[np.float32]:
    """Ask for one observation's actions ``[H, A]``; RemoteError for another shape, or numbers that are not finite."""
    request, who = wanted.request(observed), link.address.url
    try:
        answer = link.ask(request)
    except RemoteError as error:
        if "refuses" not in str(error):
            raise
        sent = ", ".join(f"{name} {shown(value)}" for name, value in request.items())
        raise RemoteError(
            f"{error}\n  sent were {sent}; names are set by ?keys= and ?key.NAME= in the address"
        ) from None
    if "actions" not in answer:
        raise RemoteError(f"{who}: an answer must hold 'actions', it holds {one_line(', '.join(map(str, answer)))}")
    try:
        actions = np.asarray(answer["actions"], np.float32)
    except (TypeError, ValueError):
        raise RemoteError(f"{who}: 'actions' must be numbers, it is {shown(answer['actions'])}") from None
    size = wanted.actions.size
    if actions.ndim != 2 or actions.shape[1] != size or not len(actions):
        names = ", ".join(wanted.actions.names)
        raise RemoteError(
            f"{who}: actions are {list(actions.shape)}, wanted are [H, {size}] ({names}); ?keys= in the address names the robot"
        )
    if not np.isfinite(actions).all():
        raise RemoteError(f"{who}: actions hold numbers that are not finite")
    return actions


class RemotePolicy:
    """A policy of another process (:class:`worldrl.core.interfaces.Policy`); its server decides how it draws."""

    needs_noise, n_obs_steps = False, 1
    device = torch.device("cpu")

    def __init__(self, address: Address) -> None:
        self._wanted = contract(address)
        self._link = Link(address, self._wanted.first)
        self.chunk_length, self.actions = self._wanted.chunk_length, self._wanted.actions

    @classmethod
    def load(cls, policy: str | Path) -> Self:
        """Connect to an address; errors as of :func:`open_contract`."""
        return cls(Address.parse(policy))

    @property
    def more(self) -> Sequence[str]:
        """Observations besides image, command and instruction."""
        return self._wanted.more

    def act(
        self,
        obs: PolicyObs,
        *,
        generators: Sequence[torch.Generator] | None,
        temperature: float = 1.0,
        correlated_noise: CorrelatedNoise | None = None,
    ) -> Chunk:
        """Ask for a chunk of each row, one after the other; ``decided`` is as answered.

        Generators and temperature have no effect: its server draws. Raises the errors of :func:`actions_of`.
        """
        rows = [self._chunk(obs, row) for row in range(len(obs.instruction))]
        decided = torch.from_numpy(np.stack(rows))
        low, high = (torch.from_numpy(bound) for bound in self.actions.bounds)
        zeros = torch.zeros_like(decided)
        return Chunk(torch.maximum(torch.minimum(decided, high), low), zeros.long(), zeros, decided)

    def _chunk(self, obs: PolicyObs, row: int) -> NDArray[np.float32]:
        tensors = {IMAGE: obs.image, COMMAND: obs.command, **obs.more}
        observed = {name: value[row].cpu().numpy() for name, value in tensors.items()}
        found = actions_of(self._link, self._wanted, {**observed, PROMPT: obs.instruction[row]})
        if len(found) < self.chunk_length:
            raise RemoteError(
                f"{self._link.address.url}: answers {len(found)} actions, {self.chunk_length} were answered at the start"
            )
        return found[: self.chunk_length]

    def eval(self) -> Self:
        """Return itself; its mode is its server's."""
        return self

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def log_prob(self, obs: PolicyObs, token: Tensor, *, temperature: float = 1.0) -> NoReturn:
        """Refuse."""
        raise SettingError(f"{self._link.address.url}: a remote policy gives no likelihood; train one of a folder")

    def save(self, folder: Path, *, parents: Sequence[Mapping[str, str]] = ()) -> NoReturn:
        """Refuse."""
        raise SettingError(f"{self._link.address.url}: a remote policy has no folder to save")
