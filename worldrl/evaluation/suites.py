"""Protocols of foreign suites: LIBERO's conventions written down where they are hashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldrl.core.errors import SettingError, nearest
from worldrl.evaluation.protocol import EvalProtocol
from worldrl.workers import libero_facts as facts


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
    """Build the protocol of a LIBERO suite.

    Args:
        suite: name, with or without a variant such as ``@lerobot``.
        described: what its worker says about it.
        tasks: names; empty takes all.
        episodes_per_task: stored initial states of each task.
        seed: root of sampling; the initial states are stored and do not depend on it.
        chunk_length: of the policy.
        shadows: the vendor's shadows and anti-aliasing.
        assets_note: what every result must say about these assets.
        **fields: any further field of :class:`EvalProtocol`.

    Raises:
        SettingError: an unknown task, more episodes than stored states, or a field out of range.
    """
    names = [task["name"] for task in described["tasks"]]
    for task in tasks:
        if task not in names:
            raise SettingError(f"tasks: unknown task {task!r}{nearest(task, names)}")
    chosen = tuple(tasks) or tuple(names)
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
            "conventions": conventions(described, shadows=shadows, assets_note=assets_note),
            **fields,
        }
    )


def conventions(described: dict[str, Any], *, shadows: bool, assets_note: str) -> dict[str, str | int | float | bool]:
    """LIBERO's conventions as a protocol holds them."""
    return {
        "settle_steps": facts.SETTLE_STEPS,
        "settle_action": " ".join(f"{number:g}" for number in facts.NO_OP),
        "fixture_seed": facts.FIXTURE_SEED,
        "image": f"turned by {facts.IMAGE_TURN}",
        "shadows": shadows,
        "action": f"delta pose, 1 = {facts.POSITION_SCALE} m and {facts.ROTATION_SCALE} rad; gripper -1 open, +1 closed",
        "state": "position, axis-angle, two fingers",
        "assets": f"{described['assets']} ({assets_note})" if assets_note else described["assets"],
    }
