"""The measuring stages of ``worldrl train-vla``: evaluation in the simulator, gates, and replayed imagination."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ProtocolError
from worldrl.core.statistics.intervals import Paired, Rate, paired, wilson
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.log import console
from worldrl.core.types import Episode
from worldrl.evaluation.policy.protocol import EvalProtocol, require_same
from worldrl.evaluation.policy.result import EvalResult
from worldrl.evaluation.world_model.rollout_error import outcome_report, padded_actions, replay, whole_chunks
from worldrl.jobs.vla.artefacts import Recording, SavedPolicy, SavedWorld
from worldrl.jobs.vla.loop import Loop, collection_split, fresh_rollouts, keyframe_rollouts
from worldrl.recipes.run import rate_interval
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts, confirmed_by_execution, execute
from worldrl.rollout.imagined.starts import SimulatorBackend
from worldrl.rollout.planning.config import Planner
from worldrl.world_models.loading import AnyVideoModel


def evaluate(
    loop: Loop, name: str, policy: SavedPolicy, planner: Planner | None = None, *, measured: str | None = None
) -> EvalResult:
    """Measure a policy in the simulator; with a planner it is not filmed, so that every episode keeps its time.

    ``measured`` is a stage that has measured this very policy: its episodes are taken, and none is run again.
    """
    from worldrl.recipes.evaluation_output import video_writer

    stage = loop.run.stage(name)
    if not stage.finished:
        if measured is not None:
            first = loop.run.stage(measured).folder
            shutil.copytree(first, stage.folder, ignore=shutil.ignore_patterns("stage.json"), dirs_exist_ok=True)
        result = loop.plan.simulator.evaluate(
            policy.folder,
            planner=planner,
            out=stage.folder / "evaluation",
            record_videos=0 if planner else loop.plan.evaluation.videos,
            on_recording=video_writer(stage.folder / "videos", loop.plan.suite.embodiment.control_hz),
        )
        loop.finish(stage, {**result.metrics(), "facts": dict(loop.plan.simulator.facts)})
    return EvalResult.load(stage.folder / "evaluation")


def require_unchanged(loop: Loop, before: EvalResult) -> None:
    """Refuse to train further where the last evaluation would have another protocol than the first; ProtocolError.

    A resumed run or a branch may meet another version of the simulator, an adapter or the assets.
    """
    if loop.run.stage("05-after").finished:
        return
    try:
        require_same(before.protocol, loop.plan.simulator.protocol)
    except ProtocolError as error:
        raise ProtocolError(
            f"this run's first evaluation does not fit the simulator of today: {error}; or give another run_dir and begin anew"
        ) from error


def gates(
    loop: Loop, number: int, policy: SavedPolicy, world: SavedWorld, practices: Sequence[Recording]
) -> dict[str, Any]:
    """Measure the gates on held-out practice and on the policy's own imagination; stop or warn when one fails.

    Raises GateError (a gate failed and ``gates=stop``).
    """
    from worldrl.evaluation.world_model.gates import ELSEWHERE, RECORDING, confirmed_gate, measure_gates, require
    from worldrl.recipes.gates_output import show_gates

    stage = loop.run.stage(f"round-{number}-3-gates")
    if stage.finished:  # the thresholds are part of the run's configuration: it passed, or gates=warn
        return stage.summary
    model, rule, learner = world.model, world.rule, policy.network
    trained_on, _, held_out = collection_split(loop, practices)
    seed = loop.plan.seed_of("gates", number)
    measured, metrics = measure_gates(model, held_out, rule, loop.plan.thresholds, seed=seed)
    count, name = loop.plan.evaluation.verify, f"gates-{number}"
    outcome = imagined_outcome(
        fresh_rollouts(loop, learner, model, count, number=number, name=name),
        rule,
        loop.plan.simulator.simulator_backend,
    )
    midway = keyframe_rollouts(loop, learner, model, trained_on, count, number=number, name=name)
    measured.append(confirmed_gate(outcome["precision"], loop.plan.confirmed))
    show_gates(measured, f"gates of round {number}, {len(held_out)} held-out episodes")
    if loop.plan.stop_at_gate:
        require(measured, remarks=(RECORDING, ELSEWHERE))
    save_replays(stage.folder, model, held_out, seed=seed)
    summary = {"gates": [asdict(gate) for gate in measured], "on_failure": "stop" if loop.plan.stop_at_gate else "warn"}
    summary |= {"held_out": len(held_out), "policy": outcome, **metrics}
    summary["keyframes"] = imagined_outcome(midway, rule, loop.plan.simulator.simulator_backend) if midway else None
    loop.finish(stage, summary)
    return stage.summary


LOSS = 1.0
"""A round's policy is undone where it loses more than this many standard errors of real success (McNemar's z)."""


def accepted(loop: Loop, number: int, before: SavedPolicy, after: SavedPolicy) -> bool:
    """Whether the policy of a round is kept: the simulator does not show that the round has lost success.

    Both act from the same initial states, which neither evaluation has. Of rounds that change nothing, one of six is undone;
    a gain is seldom.
    """
    from worldrl.evaluation.policy.compare import compare

    if not loop.plan.evaluation.accept:
        return True
    stage = loop.run.stage(f"round-{number}-5-accept")
    if not stage.finished:
        protocol = accept_protocol(loop, number)
        first, second = (
            loop.plan.simulator.evaluate(policy.folder, protocol=protocol, out=stage.folder / name)
            for name, policy in (("before", before), ("after", after))
        )
        found = compare(first, second).metrics()
        kept = not loses(found["paired"])
        loop.finish(stage, {"kept": kept, **{key: found[key] for key in ("before", "after", "paired", "tasks")}})
        console().print(accepted_line(number, stage.summary), markup=False, highlight=False)
    return stage.summary["kept"]


def accept_protocol(loop: Loop, number: int) -> EvalProtocol:
    """Training states on which the policies of a round are measured."""
    count = loop.plan.evaluation.accept
    return loop.plan.simulator.training_protocol(count, seed=loop.plan.seed_of("accept", number))


def loses(pair: Paired) -> bool:
    """Whether the second policy loses more than :data:`LOSS` standard errors: lost - won > LOSS · √(lost + won)."""
    lost, won = pair["only_a"], pair["only_b"]
    return lost - won > LOSS * (lost + won) ** 0.5


def accepted_line(number: int, found: Mapping[str, Any]) -> str:
    """Say what became of a round's policy."""
    rates = " to ".join(f"{found[name]['k']}" for name in ("before", "after"))
    end = "kept" if found["kept"] else "undone, the policy before it stays"
    return f"round {number}: {rates} real successes of {found['before']['n']} on training states; {end}"


def save_replays(folder: Path, model: AnyVideoModel, episodes: Sequence[Episode], *, seed: int) -> None:
    """Keep a few held-out episodes, real and imagined, for the report: successes first, then failures."""
    from worldrl.core.storage.arrays import save_arrays

    chosen = [e for e in episodes if e.success][:2] + [e for e in episodes if not e.success][:2]
    steps = whole_chunks(max(map(len, chosen)), model.chunk_length)
    result = replay(model, chosen, np.stack([padded_actions(e, steps) for e in chosen]), seed=seed)
    names = [f"{e.task}, {'success' if e.success else 'failure'}" for e in chosen]
    arrays = {"real": result.real, "imagined": result.imagined, "names": np.array(names)}
    save_arrays(folder / "replays.npz", arrays)


def verify(loop: Loop, policy: SavedPolicy, world: SavedWorld) -> dict[str, Any]:
    """Replay imagined rollouts of the final policy in the simulator, action by action: does imagined success hold?"""
    stage = loop.run.stage("04-verify")
    if not stage.finished:
        rollouts = fresh_rollouts(
            loop, policy.network, world.model, loop.plan.evaluation.verify, number=loop.plan.rounds, name="verify"
        )
        outcome = imagined_outcome(rollouts, world.rule, loop.plan.simulator.simulator_backend)
        loop.finish(
            stage, {**outcome, "policy": policy_facts(policy.folder).hash, "world_model": artefact_hash(world.folder)}
        )
        for line in (confirmed_line(outcome["precision"]), exploited(outcome["precision"], loop.plan.confirmed)):
            if line:
                console().print(line, markup=False, highlight=False)
    return stage.summary


def confirmed_line(precision: Rate | None) -> str:
    """Say what became of imagined successes; None where there was none."""
    if precision is None:
        return "imagined success confirmed by the simulator: not measurable, nothing was imagined to succeed"
    return f"imagined success confirmed by the simulator: {precision['k']} of {precision['n']} ({rate_interval(precision)})"


def exploited(precision: Rate | None, confirmed: float) -> str:
    """Say that the final policy exploits its world model, where too few of its imagined successes are real; else nothing."""
    if precision is None or precision["hi"] >= confirmed:
        return ""
    return (
        f"the final policy exploits its world model: {rate_interval(precision)} of its imagined successes are real, confirmed={confirmed} "
        "is asked; measure it before use, and try fewer iterations or more collection"
    )


def imagined_outcome(
    policy_rollouts: PolicyRollouts, rule: SuccessRule, simulator_backend: SimulatorBackend
) -> dict[str, Any]:
    """Execute imagined rollouts in the simulator, and compare.

    Returns precision, recall and so on of imagined success, the imagined rate and the real one, and their paired
    difference, imagined minus real; ``tasks`` holds the same of each task.
    """
    imagined, real = policy_rollouts.success_step(rule), execute(policy_rollouts, simulator_backend)
    predicted, actual, names = imagined >= 0, confirmed_by_execution(imagined, real), np.array(policy_rollouts.task)
    rows = {task: names == task for task in dict.fromkeys(policy_rollouts.task)}
    return {
        **_imagined_and_real(predicted, actual, real >= 0),
        "tasks": {task: _imagined_and_real(predicted[row], actual[row], real[row] >= 0) for task, row in rows.items()},
    }


def _imagined_and_real(
    predicted: NDArray[np.bool_], confirmed: NDArray[np.bool_], real: NDArray[np.bool_]
) -> dict[str, Any]:
    return {
        **outcome_report(predicted, confirmed),
        "imagined": wilson(int(predicted.sum()), len(predicted)),
        "same_actions_real": wilson(int(real.sum()), len(real)),
        "exploitability": paired(real, predicted),
    }
