"""Actors of real rollouts: small specs that travel as JSON, built into an actor inside the worker.

An actor serves many environments at once. Each row of a call is one running episode with its own random stream, named
after the episode. So an episode's draws never depend on the batch, the worker or the order. An actor answers with
``chunk_length`` actions per row; only a policy uses more than one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import SettingError, nearest
from worldrl.core.lookup import named
from worldrl.core.rng import numpy_stream
from worldrl.core.storage.typed import from_plain
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.rollout.agents.policy_actor import PolicyActor
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts
from worldrl.rollout.real.rows import Actor, Row
from worldrl.rollout.real.specs import EpisodeSpec, spec_of


@dataclass(frozen=True)
class ExpertActor:
    """The suite's scripted expert.

    ``noise`` is the standard deviation of the noise on each action component (action units), ``goal_offset`` that of a
    per-episode error of the expert's goal (m). A ``blind`` expert tries each skill once, whatever the outcome, so that
    its actions do not depend on the outcome.
    """

    kind: ClassVar[str] = "expert"
    noise: float = 0.0
    goal_offset: float = 0.0
    blind: bool = False

    def __post_init__(self) -> None:
        if self.noise < 0 or self.goal_offset < 0:
            raise SettingError(
                f"ExpertActor: noise and goal_offset must be >= 0, got {self.noise} and {self.goal_offset}"
            )

    def build(self) -> Actor:
        """Make the actor, inside the worker."""
        return _Scripted(self)


@dataclass(frozen=True)
class WanderActor:
    """A random walk through the workspace: broad motion for a world model, rarely a success."""

    kind: ClassVar[str] = "wander"

    def build(self) -> Actor:
        """Make the actor, inside the worker."""
        return _Scripted(self)


@dataclass(frozen=True)
class ImaginedPlanActor:
    """Executes imagined actions open loop.

    ``file`` is one of :meth:`~worldrl.rollout.imagined.policy_rollouts.PolicyRollouts.save` that holds every episode.
    """

    file: str
    kind: ClassVar[str] = "dream"

    def build(self) -> Actor:
        """Read the file, inside the worker."""
        return _GivenActions(_imagined_actions(self))


@dataclass(frozen=True)
class ReplayActor:
    """Repeats the actions of recorded episodes; the dataset's folder must hold every episode."""

    dataset: str
    kind: ClassVar[str] = "replay"

    def build(self) -> Actor:
        """Open the dataset, inside the worker."""
        return _GivenActions(_recorded_actions(self))


AnyActor = ExpertActor | WanderActor | PolicyActor | ImaginedPlanActor | ReplayActor
_PLANNED = "worldrl.rollout.agents.planned_policy:PlannedPolicyActor"  # imported only where one acts
_SPECS: dict[str, type[AnyActor] | str] = {
    **{spec.kind: spec for spec in (ExpertActor, WanderActor, PolicyActor, ImaginedPlanActor, ReplayActor)},
    "planned-policy": _PLANNED,
    "monitored-policy": "worldrl.rollout.agents.monitored_policy:MonitoredPolicyActor",
}


def paths_read_by(actor: AnyActor) -> list[str]:
    """Folders and files that an actor opens inside the worker, as its spec names them; an address is none."""
    named_paths = [getattr(actor, name) for name in ("folder", "file", "dataset", "monitor") if hasattr(actor, name)]
    if (planner := getattr(actor, "planner", None)) is not None:
        named_paths.append(planner.config.world_model)
    return [name for name in named_paths if os.path.exists(name)]


def actor_to_json(spec: AnyActor) -> dict[str, Any]:
    """Return plain JSON values, with the actor's ``kind``."""
    return {"kind": spec.kind, **asdict(spec)}


def actor_from_json(data: Mapping[str, Any]) -> AnyActor:
    """Rebuild from :func:`actor_to_json`; SettingError for an unknown kind."""
    kind = data["kind"]
    if kind not in _SPECS:
        raise SettingError(f"unknown actor {kind!r}{nearest(kind, _SPECS)}")
    fields = {name: value for name, value in data.items() if name != "kind"}
    spec = _SPECS[kind]
    return from_plain(named(spec) if isinstance(spec, str) else spec, fields, where=f"actor {kind}")


class _Scripted:
    """Runs the suite's own behaviours, which read the simulator's state; one object per episode."""

    images_needed = 0

    def __init__(self, spec: ExpertActor | WanderActor) -> None:
        self._spec = spec

    def begin(self, row: Row) -> None:
        from worldrl_envs import behaviours

        generator = numpy_stream(row.spec.seed, "act", self._spec.kind, *row.spec.stream_names)
        if isinstance(self._spec, ExpertActor):
            row.actor_state = behaviours.make_expert(
                row.spec.task,
                generator=generator,
                noise=self._spec.noise,
                goal_offset=self._spec.goal_offset,
                blind=self._spec.blind,
            )
        else:
            row.actor_state = behaviours.make_explorer(row.spec.task, generator=generator)
        row.actor_state.reset(row.env)

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        return np.stack([np.asarray(row.actor_state.act(row.env), np.float32) for row in rows])[:, None]


class _GivenActions:
    """Returns each episode's actions one by one, then holds still."""

    images_needed = 0

    def __init__(self, actions: Callable[[EpisodeSpec], NDArray[np.float32]]) -> None:
        self._actions = actions

    def begin(self, row: Row) -> None:
        row.actor_state = chain(self._actions(row.spec), _held(row))

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        return np.stack([next(row.actor_state) for row in rows])[:, None]


def _held(row: Row) -> Iterator[NDArray[np.float32]]:
    while True:  # an external suite's row has no environment, and one arm
        yield row.env.unwrapped.hold_action() if row.env else TOOL_ACTIONS.hold(np.asarray(row.obs["command"]))


def _imagined_actions(spec: ImaginedPlanActor) -> Callable[[EpisodeSpec], NDArray[np.float32]]:
    policy_rollouts = PolicyRollouts.load(Path(spec.file))
    # Not by the whole key: a simulator may place an initial state elsewhere, under the same task, index and seed.
    number = {(one.task, one.index, one.seed): n for n, one in enumerate(policy_rollouts.specs("dream"))}
    return lambda episode: policy_rollouts.action[
        _find(number, (episode.task, episode.index, episode.seed), episode, spec.file)
    ]


def _recorded_actions(spec: ReplayActor) -> Callable[[EpisodeSpec], NDArray[np.float32]]:
    dataset = EpisodeDataset.open(spec.dataset)
    number = {spec_of(record.meta).key: n for n, record in enumerate(dataset.records)}
    return lambda episode: dataset[_find(number, episode.key, episode, spec.dataset)].action


def _find(number: Mapping[Any, int], key: Any, episode: EpisodeSpec, where: str) -> int:
    if key not in number:
        raise SettingError(f"{where}: holds nothing of {episode.describe()}")
    return number[key]
