"""Protocols of external suites with their hashed conventions, and the measurement under them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from worldrl.core.actions import suite_actions
from worldrl.core.errors import SettingError, nearest
from worldrl.core.types import Episode
from worldrl.evaluation.policy.evaluate import computing, device_of, evaluate_with
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.provenance import suite_provenance
from worldrl.evaluation.policy.result import EvalResult
from worldrl.rollout.agents.actors import AnyActor
from worldrl.rollout.agents.vector_agent import VectorActor
from worldrl.rollout.real.episodes import EpisodeTiming
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.rollout.suites.suite import Suite
from worldrl.simulators.pool import SimulatorPool


def suite_protocol(
    suite: Suite,
    described: Mapping[str, Any],
    *,
    tasks: Sequence[str] = (),
    episodes_per_task: int,
    seed: int,
    chunk_length: int,
    shadows: bool = True,
    assets_note: str = "",
    **fields: Any,
) -> EvalProtocol:
    """Build the protocol of an external suite from the description ``described`` of its worker.

    Without ``tasks`` all are taken. The initial states are numbered; ``seed`` draws what the suite draws, and samples.
    ``shadows`` and ``assets_note`` (stated with every result) are LIBERO's. ``fields`` are further fields of
    :class:`EvalProtocol`. Raises SettingError (an unknown task, more episodes than initial states, or a field out of
    range).
    """
    chosen, stored = choose(tasks, described), int(described["stored_states"])
    first = int(fields.get("first_index", 0))
    if first + episodes_per_task > stored:
        raise SettingError(
            f"episodes: {suite.name} stores {stored} initial states per task; "
            f"first_index {first} + {episodes_per_task} is more"
        )
    limits = {task["name"]: int(task.get("horizon", 0)) for task in described["tasks"]}
    version, conventions = suite.conventions(described, shadows=shadows, assets_note=assets_note)
    return EvalProtocol(
        **{
            "suite": suite.name,
            "suite_version": version,
            "tasks": chosen,
            "episodes_per_task": episodes_per_task,
            "seed": seed,
            "horizon": {task: limits[task] or suite.horizon(task) for task in chosen},
            "chunk_length": chunk_length,
            "replan": chunk_length,
            "control_hz": float(described["control_hz"]),
            "packages": dict(described["packages"]),
            "initial_states": "stored",
            "conventions": conventions,
            "actions": suite_actions(described),
            **fields,
        }
    )


def evaluate_in_suite(
    pool: SimulatorPool,
    actor: AnyActor | VectorActor,
    protocol: EvalProtocol,
    cameras: tuple[str, ...],
    *,
    account: EpisodeTiming | None = None,
    **recording: Any,
) -> EvalResult:
    """Measure a policy, an agent on vectors or an expert in started workers of an external suite.

    ``cameras`` are in the order of an episode's frames; ``account`` adds up the time; ``recording`` are arguments of
    :func:`~worldrl.evaluation.policy.evaluate.evaluate_with`.
    """

    def run(specs: Sequence[EpisodeSpec], record: Sequence[int]) -> Iterator[Episode | EpisodeOutcome]:
        rules = Rules(protocol.horizon, cameras, protocol.hold_steps, frozenset(record))
        return play_episodes(pool, specs, actor, rules, account)

    found = suite_provenance(pool, protocol.packages, device=device_of(actor), draws=bool(cameras), **computing(actor))
    return evaluate_with(run, protocol, provenance=found, **recording)


def choose(tasks: Sequence[str], described: Mapping[str, Any]) -> tuple[str, ...]:
    """Named tasks, or all of a suite; SettingError for an unknown one."""
    names = [task["name"] for task in described["tasks"]]
    for task in tasks:
        if task not in names:
            raise SettingError(f"tasks: unknown task {task!r}{nearest(task, names)}")
    return tuple(tasks) or tuple(names)
