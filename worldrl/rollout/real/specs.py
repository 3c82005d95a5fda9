"""Requests and results of real rollouts: plain records that travel to a worker and back as JSON.

An episode's initial state and every draw in it depend on its :class:`EpisodeSpec` alone: never on the number of
workers, on the worker, on the order, or on other episodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.core.rng import Name
from worldrl.core.storage.typed import from_plain
from worldrl.core.types import Episode
from worldrl.data.lerobot.format import EpisodeRecord, episode_digest

PLANNED = "planned"
"""Key of an episode's meta and outcome: what a planner chose."""
MONITORED = "monitored"
"""Key of an episode's meta and outcome: the scores of a monitor."""
COPY_OF = "copy_of"
"""Key of an episode's meta: digest of the recording of which it is a copy in another style."""
IMAGE_SIZES = (8, 512)
"""Fewest and most pixels per side that the embedded suite renders."""


def require_styles(names: Iterable[str], *, field: str) -> None:
    """Check names of the embedded suite's visual styles in the setting ``field``, before anything is made.

    Raises SettingError (none is given, or one is unknown; names the nearest).
    """
    given = list(names)
    if not given:
        raise SettingError(f"{field}: must name at least one style, got []; give {field}=[default]")
    if set(given) == {"default"}:
        return  # without importing the suite
    from worldrl_envs.style import STYLES, get_style

    for name in given:
        try:
            get_style(name)
        except ValueError as error:
            raise SettingError(f"{field}: unknown style {name!r}{nearest(name, STYLES)}") from error


@dataclass(frozen=True)
class EpisodeSpec:
    """The identity of one episode.

    ``index`` and ``seed`` fix a sampled initial state; ``init_id``, the number of a stored one, replaces it. ``seed``
    is the root of the episode's random streams (initial state, expert noise, policy sampling). ``instruction=None`` is
    the task's own. ``source`` is a label stored with the record, for example ``"expert"``.
    """

    task: str
    index: int
    seed: int
    init_id: int | None = None
    instruction: str | None = None
    style: str = "default"
    source: str = ""

    def __post_init__(self) -> None:
        if self.index < 0 or (self.init_id is not None and self.init_id < 0):
            raise SettingError(f"EpisodeSpec: index and init_id must be >= 0, got {self.index} and {self.init_id}")

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Identity used for pairing: task, index, stored state (-1 where sampled) and seed."""
        return (self.task, self.index, -1 if self.init_id is None else self.init_id, self.seed)

    @property
    def stream_names(self) -> tuple[Name, ...]:
        """Path of the episode's random streams below ``seed``."""
        if self.init_id is not None:
            return (self.task, "stored", self.init_id)
        return (self.task, "sampled", self.index)

    def describe(self) -> str:
        """Name the episode for an error message."""
        state = f"index {self.index}" if self.init_id is None else f"initial state {self.init_id} (index {self.index})"
        return f"{self.task} episode {state}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EpisodeSpec:
        """Rebuild from :meth:`to_json`; ArtefactError for a field that is missing, unknown or of another type."""
        return from_plain(cls, dict(data), where="identity of an episode", error=ArtefactError)


@dataclass(frozen=True)
class PlannedChunks:
    """What a planner did in an episode: chunks that it chose, chunks left to the policy alone, and the time (s) of both.

    A recorded episode keeps no time, None there: equal settings record equal bytes.
    """

    planned: int = 0
    alone: int = 0
    seconds: float | None = 0.0

    def counts(self) -> dict[str, int]:
        """Return the chunks, as plain JSON values."""
        return {"planned": self.planned, "alone": self.alone}


@dataclass(frozen=True)
class Monitored:
    """Scores of a monitor, one for each decision of a policy, ``every`` control steps apart."""

    limit: float  # a score above it is an alarm.
    every: int
    score: tuple[float, ...] = ()

    @property
    def alarm(self) -> int | None:
        """Control step of the first alarm, None without."""
        return next((at * self.every for at, score in enumerate(self.score) if score > self.limit), None)

    def until(self, step: int | None) -> Monitored:
        """Only the decisions before a control step; None: all."""
        return self if step is None else replace(self, score=self.score[: -(-step // self.every)])


@dataclass(frozen=True)
class EpisodeOutcome:
    """Result of one episode.

    The task was fulfilled at some frame (``success_once``), and still at the last one (``success_at_end``). ``steps``
    counts actions; ``first_success`` is a frame in 1..steps, or None. ``restarted``: its worker was lost, and it ran
    again from the start. ``clipped`` counts numbers of its actions decided outside the robot's range, None where not
    counted. ``planned`` is None without a planner, ``monitored`` without a monitor.
    """

    spec: EpisodeSpec
    success_once: bool
    success_at_end: bool
    steps: int
    first_success: int | None
    restarted: bool = False
    clipped: int | None = None
    planned: PlannedChunks | None = None
    monitored: Monitored | None = None

    @classmethod
    def of(cls, episode: Episode) -> EpisodeOutcome:
        """Read the outcome of a recorded episode of an ``EmbeddedPlayer``."""
        planned, monitored = episode.meta.get(PLANNED), episode.meta.get(MONITORED)
        return cls(
            spec=spec_of(episode.meta),
            success_once=episode.success,
            success_at_end=bool(episode.reward[-1] > 0),
            steps=len(episode),
            first_success=episode.first_success,
            restarted=bool(episode.meta["restarted"]),
            clipped=episode.meta.get("clipped"),
            planned=None if planned is None else PlannedChunks(**planned, seconds=None),
            monitored=None if monitored is None else from_plain(Monitored, monitored, where=MONITORED),
        )

    def to_json(self) -> dict[str, Any]:
        """Return one flat row of plain JSON values."""
        row = asdict(self)
        for name in (PLANNED, MONITORED):
            if row[name] is None:
                del row[name]
        return {**row.pop("spec"), **row}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EpisodeOutcome:
        """Rebuild from :meth:`to_json`; ArtefactError for a field that is missing, unknown or of another type."""
        names = EpisodeSpec.__dataclass_fields__
        spec = {name: value for name, value in row.items() if name in names}
        rest = {name: value for name, value in row.items() if name not in names}
        return from_plain(cls, {"spec": spec, **rest}, where="outcome of an episode", error=ArtefactError)


@dataclass(frozen=True)
class EnvOptions:
    """How a worker makes its environments.

    ``cameras`` are in the order of the frames' axis ``V``, the main camera first. ``max_steps`` is the time limit by
    task (control steps); a task without one has its registered horizon. ``domain`` is ``clean`` or ``randomised``, of
    bimanual tasks. ``env_id`` is a Gymnasium id with ``{task}``; the worker imports the module before its colon.
    """

    image_size: int = 64
    cameras: tuple[str, ...] = ("scene",)
    max_steps: Mapping[str, int] = field(default_factory=dict)
    domain: str = "clean"
    actions: ActionSpec = TOOL_ACTIONS
    env_id: str = "worldrl_envs:worldrl/{task}-v0"

    def __post_init__(self) -> None:
        low, high = IMAGE_SIZES
        if not self.cameras:
            raise SettingError("EnvOptions: needs at least one camera, got none")
        if not low <= self.image_size <= high:
            raise SettingError(
                f"image_size: must be in {low}..{high} pixels, which the embedded suite renders, got {self.image_size}"
            )
        for task, steps in self.max_steps.items():
            if steps < 1:
                raise SettingError(f"EnvOptions.max_steps[{task}]: must be >= 1, got {steps}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = {"cameras": list(self.cameras), "max_steps": dict(self.max_steps), "actions": self.actions.to_json()}
        return {**asdict(self), **plain}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvOptions:
        """Rebuild from :meth:`to_json`."""
        actions = ActionSpec.from_json(data["actions"])
        return cls(**{**data, "cameras": tuple(data["cameras"]), "actions": actions})


def domains_of(metas: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the domains of recorded episodes, sorted; without a domain an episode is ``clean``."""
    return sorted({meta.get("domain", "clean") for meta in metas})


def spec_of(meta: Mapping[str, Any], where: str = "episode") -> EpisodeSpec:
    """Return a recorded episode's spec, stored in its ``meta``; ``where`` is its dataset and number, for the message.

    Raises ArtefactError (the episode was not recorded by an ``EmbeddedPlayer``).
    """
    missing = sorted(EpisodeSpec.__dataclass_fields__.keys() - meta.keys())
    if missing:
        raise ArtefactError(
            f"{where}: its meta lacks {missing}, so nothing says where it began; give a dataset of `worldrl collect`"
        )
    return EpisodeSpec.from_json({name: meta[name] for name in EpisodeSpec.__dataclass_fields__})


def scene_digest(record: EpisodeRecord) -> str:
    """Identify an episode together with its copies in other styles and all episodes of its initial state.

    Where that state is unknown, with copies of the same recording only.
    """
    return state_digest(spec_of(record.meta)) if has_spec(record.meta) else _digest([_recording(record)])


def state_digest(spec: EpisodeSpec) -> str:
    """Return :func:`scene_digest` of all episodes of a spec's initial state."""
    return _digest(list(spec.key))


def _digest(identity: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=8).hexdigest()


def motion_key(episode: Episode | EpisodeRecord) -> tuple[Any, ...]:
    """Identify episodes of one motion in several visual styles."""
    if not has_spec(episode.meta):
        return (_recording(episode),)
    spec = spec_of(episode.meta)
    return *spec.key, spec.source


def _recording(episode: Episode | EpisodeRecord) -> str:
    """Digest of the episode's recording: its own, or the copied one's."""
    own = episode.content if isinstance(episode, EpisodeRecord) else episode_digest(episode)
    return str(episode.meta.get(COPY_OF, own))


def has_spec(meta: Mapping[str, Any]) -> bool:
    """Whether an episode's meta hold its start in a simulator; external recordings have none."""
    return EpisodeSpec.__dataclass_fields__.keys() <= meta.keys()
