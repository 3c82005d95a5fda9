"""Protocols of external suites with their hashed conventions, and the measurement under them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec
from worldrl.rollout.suites.episodes import EpisodeTiming, Rules, play_episodes
from worldrl.simulators.pool import SimulatorPool
from worldrl.workers.isaac import facts as isaac_facts
from worldrl.workers.libero import facts
from worldrl.workers.maniskill import facts as maniskill_facts
from worldrl.workers.robotwin import facts as robotwin_facts

Conventions = dict[str, str | int | float | bool]


def suite_protocol(
    suite: str, described: dict[str, Any], *, shadows: bool, assets_note: str, **fields: Any
) -> EvalProtocol:
    """Build the protocol of an external suite from the description ``described`` of its worker; ``fields`` as in :func:`libero_protocol`.

    ``shadows`` and ``assets_note`` (stated with every result) are LIBERO's.

    Raises:
        SettingError: an unknown task, more episodes than initial states, or a field out of range.
    """
    if suite in facts.suite_names():
        return libero_protocol(suite, described, shadows=shadows, assets_note=assets_note, **fields)
    return described_protocol(suite, described, **fields)


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


def libero_protocol(
    suite: str,
    described: dict[str, Any],
    *,
    tasks: Sequence[str] = (),
    episodes_per_task: int,
    seed: int,
    chunk_length: int,
    shadows: bool,
    assets_note: str = "",
    **fields: Any,
) -> EvalProtocol:
    """Build the protocol of a LIBERO suite, with or without a variant such as ``@lerobot``.

    Without ``tasks`` all are taken. The initial states are stored; ``seed`` affects only sampling. ``fields`` are further fields of
    :class:`EvalProtocol`. Errors as in :func:`suite_protocol`.
    """
    chosen = choose(tasks, described)
    first = int(fields.get("first_index", 0))
    if first + episodes_per_task > facts.STORED_STATES:
        raise SettingError(
            f"episodes: {suite} stores {facts.STORED_STATES} initial states per task; "
            f"first_index {first} + {episodes_per_task} is more"
        )
    return EvalProtocol(
        **{
            "suite": suite,
            "suite_version": facts.VERSION,
            "tasks": chosen,
            "episodes_per_task": episodes_per_task,
            "seed": seed,
            "horizon": dict.fromkeys(chosen, facts.horizon(suite)),
            "chunk_length": chunk_length,
            "replan": chunk_length,
            "control_hz": facts.CONTROL_HZ,
            "packages": dict(described["packages"]),
            "initial_states": "stored",
            "conventions": conventions(suite, described, shadows=shadows, assets_note=assets_note),
            **fields,
        }
    )


def conventions(suite: str, described: dict[str, Any], *, shadows: bool, assets_note: str) -> Conventions:
    """LIBERO's conventions as a protocol stores them."""
    base, _ = facts.split_suite(suite)
    return {
        "settle_steps": facts.SETTLE_STEPS,
        "settle_action": " ".join(f"{number:g}" for number in facts.NO_OP),
        "fixture_seed": facts.FIXTURE_SEED,
        # hf-libero draws them again at each reset; results until 2026-11-23 did the same.
        **({"initial_properties": "drawn once"} if facts.SUITES[base].properties else {}),
        "image": f"turned by {facts.IMAGE_TURN}",
        "shadows": shadows,
        "action": f"delta pose, 1 = {facts.POSITION_SCALE} m and {facts.ROTATION_SCALE} rad; gripper -1 open, +1 closed",
        "state": "position, axis-angle, two fingers",
        "assets": f"{described['assets']} ({assets_note})" if assets_note else described["assets"],
        "sources": ", ".join(f"{name} {digest}" for name, digest in described["sources"].items()),
    }


def choose(tasks: Sequence[str], described: dict[str, Any]) -> tuple[str, ...]:
    """Named tasks, or all of a suite; SettingError for an unknown one."""
    names = [task["name"] for task in described["tasks"]]
    for task in tasks:
        if task not in names:
            raise SettingError(f"tasks: unknown task {task!r}{nearest(task, names)}")
    return tuple(tasks) or tuple(names)


def described_protocol(
    suite: str,
    described: dict[str, Any],
    *,
    tasks: Sequence[str] = (),
    episodes_per_task: int,
    seed: int,
    chunk_length: int,
    **fields: Any,
) -> EvalProtocol:
    """Build the protocol of a suite whose worker describes time limits: ManiSkill, RoboTwin, Isaac Lab.

    Arguments and errors as in :func:`libero_protocol`; ``seed`` also draws the initial states.
    """
    chosen, most = choose(tasks, described), int(described["stored_states"])
    last = int(fields.get("first_index", 0)) + episodes_per_task
    if last > most:
        raise SettingError(
            f"episodes: {suite} numbers {most} initial states per task; first_index + episodes is {last}"
        )
    horizons = {task["name"]: int(task["horizon"]) for task in described["tasks"]}
    version, conventions = described_conventions(suite, described)
    return EvalProtocol(
        **{
            "suite": suite,
            "suite_version": version,
            "tasks": chosen,
            "episodes_per_task": episodes_per_task,
            "seed": seed,
            "horizon": {task: horizons[task] for task in chosen},
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


def described_conventions(suite: str, described: dict[str, Any]) -> tuple[str, Conventions]:
    """Version of a suite, and its conventions as a protocol stores them."""
    if suite in maniskill_facts.SUITES:
        scales = f"1 = {maniskill_facts.POSITION_SCALE} m and {maniskill_facts.ROTATION_SCALE} rad"
        return maniskill_facts.VERSION, {
            "action": f"delta pose from the measured one, {scales}; gripper -1 open, +1 closed",
            "state": "position, axis-angle, two fingers",
            "initial_state": "seed = hash of task, number and seed",
            "physics": "PhysX on the CPU",
            "render": str(described["device"]),
        }
    if suite in robotwin_facts.CONFIGS:
        return f"2.0@{described['packages']['robotwin'][:12]}", {
            "action": "14 absolute joint targets, grippers 0 closed, 1 open; one retimed motion each",
            "state": "14 joints and grippers",
            "initial_state": f"seeds from {robotwin_facts.SEED_BLOCK} (1 + seed) on that the expert solved",
            "config": robotwin_facts.CONFIGS[suite],
            "success": "check_success at any physics step",
            "picture": f"{described['picture'][0]} by {described['picture'][1]} pixels",
        }
    scales = f"1 = {isaac_facts.POSITION_SCALE} m and {isaac_facts.ROTATION_SCALE} rad"
    return str(described["packages"]["isaaclab"]), {
        "action": f"delta pose from the measured one, {scales}; gripper -1 open, +1 closed",
        "state": "position in the environment's frame, axis-angle, two fingers",
        "initial_state": "seed = hash of task, number and seed; one environment at a time",
        "success": str(described["success"]),
        "observation_noise": False,
    }
