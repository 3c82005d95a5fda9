"""``worldrl train-vla``: a policy improves inside a learned video simulator, and the gain is checked in physics.

A state machine over the run directory: a stage that is finished is skipped, a stage that was cut short resumes from
its own checkpoint, so the same command goes on after a kill at any moment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from worldrl.core.device import resolve_device, set_threads
from worldrl.core.renames import RESULTS
from worldrl.core.storage.log import MetricLog, console
from worldrl.core.training.ranks import refuse_many
from worldrl.evaluation.policy.compare import compare
from worldrl.jobs.vla import checks, stages
from worldrl.jobs.vla.loop import Loop, check_held_out, check_policy_fits
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.jobs.vla.training_suite import open_training_suite, tasks_of
from worldrl.recipes.run import open_run
from worldrl.recipes.world_model.start import (
    SCRATCH,
    check_start,
    check_wan_start,
    require_kind,
    require_robot,
    weights_folder,
)
from worldrl.world_models.loading import VIDEO

__all__ = ["TrainVlaSettings", "main"]


def main(settings: TrainVlaSettings) -> dict[str, Any]:
    """Run the loop to ``report.html`` and ``result.json``.

    Args:
        settings: of the loop.

    Returns:
        The metrics: before, after, paired comparison, gates and imagined numbers of every round.

    Raises:
        SettingError: nothing of the practice would be held out, or the world model is another robot's.
        GateError: the world model is not good enough to practise in, and ``gates=stop``.
    """
    from worldrl.evaluation.report.store import publish
    from worldrl.evaluation.report.terminal import show
    from worldrl.jobs.vla.near_goal import check_near_goal
    from worldrl.jobs.vla.report import report_page
    from worldrl.recipes.suites.opening import say_assets

    refuse_many("train-vla")
    device = resolve_device(settings.device)
    set_threads(settings.threads)
    tasks = tasks_of(settings)
    check_held_out(settings, tasks)
    check_near_goal(settings, tasks)
    if settings.backbone == VIDEO:
        require_kind(settings.start, settings.world_model)
        check_start(settings.start, settings.world_model, settings.training)
    else:
        check_wan_start(settings.start, settings.wan)
    check_policy_fits(settings)
    with open_training_suite(settings, tasks, device) as training_suite:
        require_robot(settings.start, training_suite.embodiment)
        with open_run("train-vla", settings) as run, MetricLog(run.path) as log:
            loop = Loop(settings, run, log, device, training_suite)
            demos = stages.demonstrations(loop)
            supervised = stages.supervised_policy(loop, demos)
            before = checks.evaluate(loop, "03-before", supervised)
            policy, world = run_rounds(loop, demos, supervised)
            verified = checks.verify(loop, policy, world)
            after = checks.evaluate(loop, "05-after", policy)
            metrics = {
                **suite_facts(loop),
                "before": before.metrics(),
                "after": after.metrics(),
                "comparison": compare(before, after).metrics(),
                "verify": verified,
                "rounds": [round_summary(loop, number) for number in range(1, settings.rounds + 1)],
                "policy": str(policy.relative_to(run.path)),
                "world_model": str(world.relative_to(run.path)),
            }
            run.write_result(metrics, seed=settings.seed, device=str(device), protocol_hash=before.protocol.hash)
            shown = report_page(loop, metrics)
            page = publish(run, shown)
            show(shown, console())
            say_assets(metrics)
            console().print(f"report: {page}")
    return metrics


def suite_facts(loop: Loop) -> dict[str, Any]:
    """Which suite, and what its first evaluation says about assets, physics and drawing."""
    return {"suite": loop.training_suite.name, **loop.run.stage("03-before").summary.get("facts", {})}


def run_rounds(loop: Loop, demos: Path, supervised: Path) -> tuple[Path, Path]:
    """Practise, refine, check and improve, ``rounds`` times; return the last policy and world model."""
    start, policy = loop.settings.start, supervised
    world = None if start == SCRATCH else weights_folder(start)
    practices: list[Path] = []
    for number in range(1, loop.settings.rounds + 1):
        practices.append(stages.practice(loop, number, policy, world))
        world = stages.world_model(loop, number, demos, practices, policy, world)
        checks.gates(loop, number, policy, world, practices)
        # WoVR goes on from the latest policy, World-VLA-Loop from the supervised one each time.
        learner = supervised if loop.settings.improve_from == "supervised" else policy
        policy = stages.improved_policy(loop, number, demos, learner, world, practices)
    if world is None:
        raise ValueError("rounds must be positive")  # the settings have checked it
    return policy, world


def round_summary(loop: Loop, number: int) -> dict[str, Any]:
    """Collect what a round measured."""
    from worldrl.jobs.vla.filtering import STAGES, reader_stage
    from worldrl.methods.rl.trust import READ

    names = {"practice": 1, "world-model": 2, "gates": 3, "improve": 4}  # of the stage folders
    found = {RESULTS.get(name, name): loop.run.stage(f"round-{number}-{k}-{name}").summary for name, k in names.items()}
    if (sign := loop.settings.improvement.trust.confidence_score) in READ:
        found[STAGES[sign]] = loop.run.stage(reader_stage(number, sign)).summary
    return {name.replace("-", "_"): summary for name, summary in found.items()}
