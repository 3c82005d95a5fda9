"""``worldrl train-vla``: a policy improves inside a learned video simulator, and the gain is checked in physics.

A state machine over the run directory: a stage that is finished is skipped, a stage that was cut short resumes from
its own checkpoint, so the same command continues after a kill at any moment.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from worldrl.core.device import set_threads
from worldrl.core.lookup import named
from worldrl.core.renames import RESULTS
from worldrl.core.storage.log import MetricLog, console
from worldrl.core.training.ranks import refuse_many
from worldrl.jobs.vla import checks, stages
from worldrl.jobs.vla.artefacts import Recording, SavedPolicy, SavedWorld
from worldrl.jobs.vla.branch import branch_facts, take_stages
from worldrl.jobs.vla.loop import Loop
from worldrl.jobs.vla.plan import resolve
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.recipes.run import open_run

__all__ = ["TrainVlaSettings", "main"]


def main(settings: TrainVlaSettings) -> dict[str, Any]:
    """Run the loop to ``report.html`` and ``result.json``.

    Returns the metrics: before, after, paired comparison, gates and imagined numbers of every round. Raises
    SettingError (something that the run needs does not fit (:func:`~worldrl.jobs.vla.plan.resolve`)). Raises
    GateError (the world model is not good enough to improve in, and ``gates=stop``).
    """
    refuse_many("train-vla", "or train its parts by train-policy, train-world-model and train-idm")
    set_threads(settings.threads)
    plan = resolve(settings)
    with closing(plan.suite), open_run("train-vla", settings) as run, MetricLog(run.path, settings.tracker) as log:
        loop = Loop(plan, run, log)
        take_stages(loop, TrainVlaSettings)
        return named(plan.suite.loop)(loop)


def run_loop(loop: Loop) -> dict[str, Any]:
    """Run every stage and publish the result."""
    from worldrl.evaluation.policy.compare import compare
    from worldrl.evaluation.report.card import write_card
    from worldrl.evaluation.report.store import publish
    from worldrl.evaluation.report.tables import print_table
    from worldrl.evaluation.report.terminal import show
    from worldrl.jobs.vla.planning import measure_planner
    from worldrl.jobs.vla.report import report_page, stage_times
    from worldrl.recipes.evaluation_output import say_assets

    run, plan = loop.run, loop.plan
    demos = stages.demonstrations(loop)
    supervised = stages.supervised_policy(loop, demos)
    before = checks.evaluate(loop, "03-before", supervised)
    checks.require_unchanged(loop, before)
    policy, world = run_rounds(loop, demos, supervised)
    verified = checks.verify(loop, policy, world)
    after = checks.evaluate(loop, "05-after", policy, measured="03-before" if policy is supervised else None)
    planned = measure_planner(loop, world, {"before": (supervised, before), "after": (policy, after)})
    metrics = {
        **suite_facts(loop),
        **branch_facts(loop),
        "before": before.metrics(),
        "after": after.metrics(),
        "comparison": compare(before, after).metrics(),
        **planned,
        "verify": verified,
        "rounds": [round_summary(loop, number) for number in range(1, plan.rounds + 1)],
        "stage_wall_s": {stage.name: stage.wall_s for stage in stage_times(loop)},
        "policy": str(policy.folder.relative_to(run.path)),
        "world_model": str(world.folder.relative_to(run.path)),
    }
    run.write_result(metrics, seed=plan.seed, device=str(plan.device), protocol_hash=before.protocol.hash)
    # lerobot's layout has a card of its own; a finished run that is started again changes nothing.
    if (policy.folder / "manifest.json").is_file() and not (policy.folder / "README.md").is_file():
        write_card(policy.folder, [run.path / "result.json"])
    shown = report_page(loop, metrics)
    page = publish(run, shown)
    for table in shown.tables:
        print_table(table, console(), range(4))
    show(shown, console())
    say_assets(metrics)
    console().print(f"report: {page}")
    return metrics


def suite_facts(loop: Loop) -> dict[str, Any]:
    """Which suite, and what its first evaluation says about assets, physics and drawing."""
    return {"suite": loop.plan.suite.name, **loop.run.stage("03-before").summary.get("facts", {})}


def run_rounds(loop: Loop, demos: Recording, supervised: SavedPolicy) -> tuple[SavedPolicy, SavedWorld]:
    """Collect, refine, check and improve, ``rounds`` times; return the last policy and world model."""
    from worldrl.jobs.vla.combining import policy_after

    plan, policy = loop.plan, supervised
    world = None if plan.start is None else loop.world(plan.start)
    practices: list[Recording] = []
    undone: SavedPolicy | None = None
    for number in range(1, plan.rounds + 1):
        # What the policy of an undone round exploited, the world model learns from its real episodes.
        practices.append(stages.practice(loop, number, policy, world, undone or policy))
        world = stages.world_model(loop, number, demos, practices, policy, world)
        checks.gates(loop, number, policy, world, practices)
        # WoVR continues from the latest policy, World-VLA-Loop from the supervised one each time.
        learner = supervised if plan.from_supervised else policy
        improved = stages.improved_policy(loop, number, demos, learner, world, practices)
        policy, undone = policy_after(loop, number, policy, improved, [demos, *practices])
    if world is None:
        raise ValueError("rounds must be positive")  # the settings have checked it
    return policy, world


def round_summary(loop: Loop, number: int) -> dict[str, Any]:
    """Collect what a round measured."""
    from worldrl.jobs.vla.filtering import STAGES, reader_stage
    from worldrl.methods.rl.trust import READ

    names = {"practice": 1, "world-model": 2, "gates": 3, "improve": 4}  # of the stage folders
    if loop.plan.evaluation.accept:
        names["accept"] = 5
    if loop.run.stage_finished(f"round-{number}-6-distil"):
        names["distil"] = 6
    found = {RESULTS.get(name, name): loop.run.stage(f"round-{number}-{k}-{name}").summary for name, k in names.items()}
    sign = loop.plan.improvement.trust.confidence_score
    # A branch may have begun to use the score after this round.
    if sign in READ and (loop.run.path / "stages" / reader_stage(number, sign)).is_dir():
        found[STAGES[sign]] = loop.run.stage(reader_stage(number, sign)).summary
    return {name.replace("-", "_"): summary for name, summary in found.items()}
