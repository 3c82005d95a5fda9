"""Planning at test time, shared by commands: settings checked and opened, and what a result says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from worldrl.core.errors import SettingError
from worldrl.core.observation import IMAGE, further
from worldrl.core.storage.log import console
from worldrl.rollout.agents.policy_folder import REMOTE, PolicyFacts, policy_facts, policy_place
from worldrl.rollout.planning.config import NONE, Planner, PlanningConfig
from worldrl.rollout.real.specs import PlannedChunks


class PlanningSettings(Protocol):
    """What is read of a command's settings."""

    planner: str
    planning: PlanningConfig


def planner_of(settings: PlanningSettings, policy: str | None, *, latency: int = 0) -> Planner | None:
    """Open the planner of a command's settings around a policy's folder (None: a scripted expert); None for none.

    Raises SettingError (no such planner, a policy that cannot be imagined, or one of another robot, image size, chunk length
    or observation). Raises ArtefactError (there is no world model or policy).
    """
    if settings.planner == NONE:
        return None
    from worldrl.recipes.world_model.start import SCRATCH, weights_folder

    planner, world_model = Planner(settings.planner, settings.planning), settings.planning.world_model
    if world_model == SCRATCH:
        raise SettingError(
            "planning.world_model: scratch has learned nothing to imagine with; give bundled or a folder"
        )
    if latency:
        raise SettingError(f"latency: the robot waits while {planner.name} plans, got {latency}; give latency=0")
    if policy is None:
        raise SettingError(f"planner: {planner.name} plans for a policy, not for a scripted expert; give planner=none")
    _check_world_model(require_plannable(policy_place(policy), planner.name), policy_place(policy), world_model)
    return replace(planner, config=replace(settings.planning, world_model=str(weights_folder(world_model).resolve())))


def require_plannable(folder: Path, name: str) -> PolicyFacts:
    """Read a policy's facts; SettingError where the planner of this name cannot imagine its candidates."""
    facts = policy_facts(folder)
    if facts.kind == REMOTE:
        raise SettingError(
            f"planner: {name} draws candidates, and the server of {folder} decides how it draws; give planner=none"
        )
    if not facts.cameras:
        raise SettingError(f"planner: {name} plans for a policy of images, not for {folder}; give planner=none")
    if facts.n_obs_steps > 1:
        raise SettingError(
            f"planner: the policy in {folder} observes {facts.n_obs_steps} control steps (n_obs_steps), a planner one; give "
            "planner=none"
        )
    return facts


def _check_world_model(facts: PolicyFacts, folder: Path, world_model: str) -> None:
    from worldrl.recipes.world_model.start import weights_folder

    for what, own, others in _differing(facts, world_model):
        raise SettingError(
            f"planning.world_model: {weights_folder(world_model)} has {what} {others}, the policy in {folder} has {own}; "
            "give planning.world_model=FOLDER of one that was made for this policy"
        )


def _differing(facts: PolicyFacts, world_model: str) -> list[tuple[str, Any, Any]]:
    """Name what does not fit, with the policy's value and the world model's."""
    from worldrl.recipes.world_model.start import robot_of, stored_config
    from worldrl.world_models.video.config import VideoWorldModelConfig

    config, actions = stored_config(world_model), robot_of(world_model).actions
    shown = further(config.cameras, config.state) if isinstance(config, VideoWorldModelConfig) else ()
    size = config.codec.image_size
    pairs = [
        ("actions", ", ".join(facts.actions.names), ", ".join(actions.names), facts.actions == actions),
        ("image size", facts.picture, (size, size), facts.picture == (size, size)),
        (
            "chunk length",
            facts.chunk_length,
            config.dynamics.chunk_length,
            facts.chunk_length == config.dynamics.chunk_length,
        ),
        ("observations", ", ".join((IMAGE, *facts.more)), ", ".join((IMAGE, *shown)), set(facts.more) <= set(shown)),
    ]
    return [(what, own, others) for what, own, others, fits in pairs if not fits]


def planning_metrics(planner: str, found: Sequence[PlannedChunks | None]) -> dict[str, Any]:
    """What a result says of the planner of this name, from its episodes; nothing of ``none``.

    Recorded episodes keep no time, so ``seconds_per_chunk`` is of the others, None without any.
    """
    if planner == NONE:
        return {}
    counted = [one for one in found if one is not None]
    timed = [one for one in counted if one.seconds is not None]
    planned, alone = (sum(getattr(one, name) for one in counted) for name in ("planned", "alone"))
    seconds = sum(one.seconds or 0 for one in timed)
    chunks = sum(one.planned + one.alone for one in timed)
    return {
        "planning": {
            "planner": planner,
            "planned": planned,
            "alone": alone,
            "seconds_per_chunk": seconds / chunks if chunks else None,
        }
    }


def say_planning(metrics: Mapping[str, Any]) -> None:
    """Print what :func:`planning_metrics` found, below a closing table."""
    if found := metrics.get("planning"):
        chunks, seconds = found["planned"] + found["alone"], found["seconds_per_chunk"]
        took = "" if seconds is None else f", {seconds:.2f} s per chunk"
        console().print(
            f"measured with the planner {found['planner']}: it chose {found['planned']} of {chunks} chunks, the policy alone "
            f"{found['alone']}{took}",
            markup=False,
        )
