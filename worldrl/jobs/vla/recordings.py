"""The loop of ``worldrl train-vla suite=recordings``: one round, without a simulator.

::

    01-recordings ─► 02-policy ─► round-1-2-world-model ─► round-1-3-gates ─► 03-before ─► round-1-4-improve ─► 05-after

``03-before`` and ``05-after`` are imagined, from the same held-out start frames with the same noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import GateError, SettingError
from worldrl.core.statistics.intervals import Paired, Rate, paired, wilson
from worldrl.core.statistics.sequential import discordant_share, paired_episodes, sequential_plan
from worldrl.data.lerobot.dataset import EpisodeDataset, assumed
from worldrl.evaluation.policy.imagined import Start
from worldrl.evaluation.report.store import publish
from worldrl.evaluation.world_model.gates import measure_gates, require
from worldrl.jobs.vla import stages
from worldrl.jobs.vla.artefacts import Recording, SavedPolicy, SavedWorld
from worldrl.jobs.vla.branch import branch_facts
from worldrl.jobs.vla.checks import save_replays
from worldrl.jobs.vla.loop import Loop, keep_world_model, trained_world_model
from worldrl.jobs.vla.recorded_suite import RecordedSuite
from worldrl.jobs.vla.recordings_report import report_page, show
from worldrl.recipes.gates_output import show_gates
from worldrl.recipes.imagined_success import Draws, draw_starts, imagined_success, uncalibrated
from worldrl.recipes.stages import calibrate
from worldrl.recipes.training_data import note_events
from worldrl.recipes.world_model.start import WORLD_MODEL

ALPHA, POWER = 0.05, 0.8
"""Of the real trials that are planned."""
MOST_PAIRS = 500
"""Pairs of real trials beyond which no sequential test is planned (it takes minutes, and nobody runs them)."""
BATCH = 32
"""Rollouts imagined at once, and between two saves."""


def run_recordings(loop: Loop) -> dict[str, Any]:
    """Run every stage and publish the result; GateError where a gate fails and ``gates=stop``."""
    run, plan, suite = loop.run, loop.plan, cast("RecordedSuite", loop.plan.suite)
    data = opened(loop, suite)
    folder = Path(str(plan.data))
    learned_data = data.subset(suite.parts.training)
    whole, learned = Recording(folder, data, run.path), Recording(folder, learned_data, run.path)
    note_events(learned.dataset, f"the {len(learned.dataset)} training episodes")
    supervised = stages.supervised_policy(loop, learned)
    world = world_model(loop, suite, data)
    found = gates(loop, suite, world, whole)
    starts = draw_starts(
        data.subset(suite.parts.held_out),
        plan.evaluation.episodes,
        plan.horizons,
        seed=plan.seed_of("imagined success"),
    )
    before = measure(loop, "03-before", supervised, world, starts)
    policy = stages.improved_policy(loop, 1, learned, supervised, world, [whole])
    after = measure(loop, "05-after", policy, world, starts)
    metrics = {
        "suite": suite.name,
        **branch_facts(loop),
        **without_times(loop.run.stage("01-recordings").summary),
        **compared(before, after, [start.episode.task for start in starts]),
        "gates": found["gates"],
        "not_trusted": found["not_trusted"],
        "improvement": without_times(loop.run.stage("round-1-4-improve").summary),
        "supervised_policy": str(supervised.folder.relative_to(run.path)),
        "policy": str(policy.folder.relative_to(run.path)),
        "world_model": str(world.folder.relative_to(run.path)),
    }
    pair = metrics["imagined_comparison"]["imagined_paired"]
    metrics["policy_for_robot"] = metrics["policy" if pair["diff"] > 0 else "supervised_policy"]
    metrics["real_trials"] = real_trials(metrics["imagined_before"]["imagined_success"], pair)
    run.write_result(metrics, seed=plan.seed, device=str(plan.device))
    page = publish(run, report_page(loop, metrics))
    show(metrics, run.path, page)
    return metrics


# -- stages --------------------------------------------------------------------------------------------------------


def opened(loop: Loop, suite: RecordedSuite) -> EpisodeDataset:
    """Decode the recordings, and hold them against those that the run began with."""
    stage, records = loop.run.stage("01-recordings"), suite.data.records
    if not stage.finished:
        won = sum(record.success for record in records)
        counts = {"episodes": len(records), "succeeded": won, "failed": len(records) - won}
        facts = {**counts, "held_out": len(suite.parts.held_out), "path": loop.plan.data}
        summary = {"recordings": facts, "assumed": list(assumed(records))}
        loop.finish(stage, {**summary, "content": suite.data.fingerprint})
    stages.require_unchanged(stage, suite.data)
    return suite.data.load(scratch=loop.run.path)


def world_model(loop: Loop, suite: RecordedSuite, data: EpisodeDataset) -> SavedWorld:
    """Learn the world model from the training episodes, then calibrate its success head on recordings alone."""
    stage, plan = loop.run.stage("round-1-2-world-model"), loop.plan
    if not stage.finished:
        before = None if plan.start is None else loop.world(plan.start)
        training, calibration = (list(data.subset(part)) for part in (suite.parts.training, suite.parts.calibration))
        model, numbers = trained_world_model(loop, 1, training, data.embodiment, before)
        calibrate(model, calibration, target_precision=plan.precision_of(1), seed=plan.seed_of("world-model", 1))
        seen = Recording(Path(str(plan.data)), data.subset([*suite.parts.training, *suite.parts.calibration]))
        keep_world_model(loop, stage, model, [seen], before, {"training": numbers, "episodes": len(training)})
    return loop.world(stage.folder / WORLD_MODEL)


def gates(loop: Loop, suite: RecordedSuite, world: SavedWorld, whole: Recording) -> dict[str, Any]:
    """Measure the gates on held-out recordings; stop or warn when one fails, or nothing calibrated the success head.

    Raises GateError (a gate failed and ``gates=stop``).
    """
    stage, plan = loop.run.stage("round-1-3-gates"), loop.plan
    if stage.finished:
        return stage.summary
    model, rule, seed = world.model, world.rule, plan.seed_of("gates", 1)
    held_out = [whole.episodes[place] for place in suite.parts.gates]
    measured, metrics = measure_gates(model, held_out, rule, plan.thresholds, seed=seed)
    show_gates(measured, f"gates, {len(held_out)} held-out recordings")
    unknown = uncalibrated(rule)
    if plan.stop_at_gate:
        require(measured)
        if unknown:
            raise GateError(
                f"the world model cannot say what succeeds: {unknown[0]}; record more of both, or gates=warn"
            )
    save_replays(stage.folder, model, held_out, seed=seed)
    failed = [f"gate {gate.name} failed" for gate in measured if not gate.passed]
    summary = {"gates": [asdict(gate) for gate in measured], "held_out": len(held_out), **metrics}
    summary["not_trusted"] = [*suite.reasons, *unknown, *failed]
    # Nothing executes imagined successes, so nothing is known of those of the policy.
    loop.finish(stage, {**summary, "policy": {"precision": None}, "keyframes": None})
    return stage.summary


def measure(
    loop: Loop, name: str, policy: SavedPolicy, world: SavedWorld, starts: Sequence[Start]
) -> NDArray[np.bool_]:
    """Imagined success of a policy from every start, bool ``[E]``."""
    return imagined_success(
        loop.run.stage(name),
        world.model,
        policy.folder,
        name.partition("-")[2],
        starts,
        Draws(BATCH, loop.plan.evaluation.temperature, loop.plan.seed_of("imagined success")),
        finish=loop.finish,
    )


# -- numbers, every one of imagination named so --------------------------------------------------------------------


def compared(before: NDArray[np.bool_], after: NDArray[np.bool_], task: Sequence[str]) -> dict[str, Any]:
    """Imagined success before and after from the same starts ``[E]``, and their paired difference; by task, too."""
    names = np.asarray(task)
    parts = {name: names == name for name in sorted(set(task))}

    def rates(success: NDArray[np.bool_]) -> dict[str, Any]:
        return {
            "imagined_success": wilson(int(success.sum()), len(success)),
            "tasks": {
                name: {"imagined_success": wilson(int(success[own].sum()), int(own.sum()))}
                for name, own in parts.items()
            },
        }

    pairs = {name: {"imagined_paired": paired(before[own], after[own])} for name, own in parts.items()}
    return {
        "imagined_before": rates(before),
        "imagined_after": rates(after),
        "imagined_comparison": {"imagined_paired": paired(before, after), "tasks": pairs},
    }


def without_times(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage found; a history of the improvement is one of imagined success."""
    names = {"history": "imagined_history"}
    return {names.get(name, name): value for name, value in summary.items() if name != "run_wall_s"}


def real_trials(before: Rate, pair: Paired) -> dict[str, Any] | None:
    """Plan a sequential paired test on the robot that would show the imagined difference; None where none can.

    A pair is one trial of each policy from the same arrangement. Both are taken to succeed independently of each other,
    which needs more trials than policies that mostly agree.
    """
    diff = pair["diff"]
    if diff <= 0:
        return None
    share = discordant_share(before["rate"], diff)
    try:
        once = paired_episodes(share, diff, alpha=ALPHA, power=POWER)
    except SettingError:  # beyond any plan
        return None
    found = {
        "alpha": ALPHA,
        "power": POWER,
        "imagined_difference": diff,
        "discordant_share": share,
        "pairs_at_once": once,
    }
    if once > MOST_PAIRS:
        return found
    plan = sequential_plan(share, diff, alpha=ALPHA, power=POWER)
    means = {"mean_pairs": plan["episodes"], "mean_pairs_if_equal": plan["episodes_if_equal"]}
    return {**found, "most_pairs": plan["n_max"], **means}
