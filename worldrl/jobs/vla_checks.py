"""The measuring stages of ``worldrl train-vla``: evaluation in the simulator, gates, and replayed imagination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.artefact import artefact_hash
from worldrl.core.log import console
from worldrl.core.stats import Rate, wilson
from worldrl.core.types import Episode
from worldrl.evaluation.gates import confirmed_gate, measure_gates, require
from worldrl.evaluation.result import EvalResult
from worldrl.evaluation.world_model import outcome_report, padded_actions, replay, whole_chunks
from worldrl.jobs.evaluation_output import video_writer
from worldrl.jobs.gates_output import show_gates
from worldrl.jobs.opening import rate_interval
from worldrl.jobs.vla_loop import Loop, fresh_dreams, keyframe_dreams, load_world_model, practice_split
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.dreams import Dreams, came_true, execute
from worldrl.rollout.policy_folder import load_policy, policy_facts
from worldrl.rollout.starts import Ground
from worldrl.world_models.loading import AnyVideoModel


def evaluate(loop: Loop, name: str, policy: Path) -> EvalResult:
    """Measure a policy in the simulator."""
    stage = loop.run.stage(name)
    if not stage.finished:
        result = loop.arena.evaluate(
            policy,
            out=stage.folder / "evaluation",
            videos=loop.settings.evaluation.videos,
            on_recording=video_writer(stage.folder / "videos", loop.arena.embodiment.control_hz),
        )
        loop.finish(stage, {**result.metrics(), "facts": dict(loop.arena.facts)})
    return EvalResult.load(stage.folder / "evaluation")


def gates(loop: Loop, number: int, policy: Path, world: Path, practices: Sequence[Path]) -> dict[str, Any]:
    """Measure the gates on held-out practice and on the policy's own imagination; stop or warn when one fails.

    Raises:
        GateError: a gate failed and ``gates=stop``.
    """
    stage = loop.run.stage(f"round-{number}-3-gates")
    if stage.finished:  # the thresholds are part of the run's configuration: it passed, or was told to go on
        return stage.summary
    model, rule = load_world_model(loop, world)
    trained_on, _, held_out = practice_split(loop, practices)
    seed = loop.seed("gates", number)
    measured, metrics = measure_gates(model, held_out, rule, loop.settings.thresholds, seed=seed)
    learner, count, name = load_policy(policy, str(loop.device)), loop.settings.evaluation.verify, f"gates-{number}"
    outcome = imagined_outcome(fresh_dreams(loop, learner, model, count, name=name), rule, loop.arena.ground)
    midway = keyframe_dreams(loop, learner, model, trained_on, count, name=name)
    measured.append(confirmed_gate(outcome["precision"], loop.settings.confirmed))
    show_gates(measured, f"gates of round {number}, {len(held_out)} held-out episodes")
    if loop.settings.gates == "stop":
        require(measured)
    save_replays(stage.folder, model, held_out, seed=seed)
    summary = {"gates": [asdict(gate) for gate in measured], "on_failure": loop.settings.gates}
    summary |= {"held_out": len(held_out), "policy": outcome, **metrics}
    summary["keyframes"] = imagined_outcome(midway, rule, loop.arena.ground) if midway else None
    loop.finish(stage, summary)
    return stage.summary


def save_replays(folder: Path, model: AnyVideoModel, episodes: Sequence[Episode], *, seed: int) -> None:
    """Keep a few held-out episodes, real and imagined, for the report: successes first, then failures."""
    chosen = [e for e in episodes if e.success][:2] + [e for e in episodes if not e.success][:2]
    steps = whole_chunks(max(map(len, chosen)), model.chunk_length)
    result = replay(model, chosen, np.stack([padded_actions(e, steps) for e in chosen]), seed=seed)
    names = [f"{e.task}, {'success' if e.success else 'failure'}" for e in chosen]
    np.savez_compressed(folder / "replays.npz", real=result.real, imagined=result.imagined, names=np.array(names))


def verify(loop: Loop, policy: Path, world: Path) -> dict[str, Any]:
    """Replay imagined rollouts of the final policy in the simulator, action by action: does imagined success hold?"""
    stage = loop.run.stage("04-verify")
    if not stage.finished:
        model, rule = load_world_model(loop, world)
        dreams = fresh_dreams(
            loop, load_policy(policy, str(loop.device)), model, loop.settings.evaluation.verify, name="verify"
        )
        outcome = imagined_outcome(dreams, rule, loop.arena.ground)
        loop.finish(stage, {**outcome, "policy": policy_facts(policy).hash, "world_model": artefact_hash(world)})
        console().print(confirmed_line(outcome["precision"]), markup=False, highlight=False)
    return stage.summary


def confirmed_line(precision: Rate | None) -> str:
    """Say what became of imagined successes; None where there was none."""
    if precision is None:
        return "imagined success confirmed by the simulator: not measurable, nothing was imagined to succeed"
    return f"imagined success confirmed by the simulator: {precision['k']} of {precision['n']} ({rate_interval(precision)})"


def imagined_outcome(dreams: Dreams, rule: SuccessRule, ground: Ground) -> dict[str, Rate | None]:
    """Execute dreams in the simulator, and compare.

    Returns:
        Precision, recall and so on of imagined success, the imagined rate and the real one.
    """
    imagined, real = dreams.success_step(rule), execute(dreams, ground)
    predicted, actual = imagined >= 0, came_true(imagined, real)
    return {
        **outcome_report(predicted, actual),
        "imagined": wilson(int(predicted.sum()), len(predicted)),
        "same_actions_real": wilson(int((real >= 0).sum()), len(real)),
    }
