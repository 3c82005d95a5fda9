"""After a round of ``worldrl train-vla``: keep its policy, undo it, or keep of each task the better of two policies.

A round that improves some tasks often loses others, since all share one network. Where the training states show both,
a policy is distilled from the two: on each task from the one with more successes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldrl.core.storage.artefact import parent
from worldrl.core.storage.log import console
from worldrl.evaluation.policy.result import EvalResult
from worldrl.jobs.vla import checks
from worldrl.jobs.vla.artefacts import Recording, SavedPolicy
from worldrl.jobs.vla.loop import Loop
from worldrl.policies.samples import make_samples
from worldrl.policies.token.policy import TokenPolicy
from worldrl.recipes.stages import POLICY

BEFORE, AFTER = "before", "after"


def policy_after(
    loop: Loop, number: int, before: SavedPolicy, after: SavedPolicy, recordings: Sequence[Recording]
) -> tuple[SavedPolicy, SavedPolicy | None]:
    """Return the policy after a round, and that of the round where it was undone.

    ``recordings``: what the run has recorded so far, whose frames a distilled policy learns on.
    """
    kept = checks.accepted(loop, number, before, after)
    policy, undone = (after, None) if kept else (before, after)
    if not (loop.plan.evaluation.accept and loop.plan.distillation.steps) or continued_without(loop, number):
        return policy, undone
    found = better_by_task(loop.run.stage(f"round-{number}-5-accept").summary)
    if len(set(found.values())) < 2:
        return policy, undone
    combined = combined_policy(loop, number, {BEFORE: before, AFTER: after}, found, recordings)
    return combined or policy, undone


def continued_without(loop: Loop, number: int) -> bool:
    """Whether the run, of an earlier version or a branch, is past this round without a distilled policy."""
    past = any(map(loop.run.stage_finished, (f"round-{number + 1}-1-practice", "04-verify")))
    return past and not loop.run.stage_finished(f"round-{number}-6-distil")


def better_by_task(accept: Mapping[str, Any]) -> dict[str, str]:
    """Say of each task which of both policies has more successes on the training states; of equal ones the new one."""
    return {
        task: BEFORE if rates["before"]["k"] > rates["after"]["k"] else AFTER for task, rates in accept["tasks"].items()
    }


def combined_policy(
    loop: Loop,
    number: int,
    policies: Mapping[str, SavedPolicy],
    better: Mapping[str, str],
    recordings: Sequence[Recording],
) -> SavedPolicy | None:
    """Distil both policies into one and measure it; None where it loses against the better one, or cannot be made."""
    stage = loop.run.stage(f"round-{number}-6-distil")
    if not stage.finished:
        if (networks := token_policies(policies)) is None:
            loop.finish(stage, {"kept": False, "why": "only a token policy's distribution is known"})
            return None
        learn(loop, number, {task: networks[name] for task, name in better.items()}, policies, recordings)
        loop.finish(stage, {"better": dict(better), **measured(loop, number, stage.folder)})
        console().print(combined_line(number, stage.summary), markup=False, highlight=False)
    return loop.policy(stage.folder / POLICY) if stage.summary["kept"] else None


def token_policies(policies: Mapping[str, SavedPolicy]) -> dict[str, TokenPolicy] | None:
    """Return the networks; None where one is another policy."""
    networks = {name: policy.network for name, policy in policies.items()}
    found = {name: network for name, network in networks.items() if isinstance(network, TokenPolicy)}
    return found if len(found) == len(networks) else None


def learn(
    loop: Loop,
    number: int,
    teachers: Mapping[str, TokenPolicy],
    policies: Mapping[str, SavedPolicy],
    recordings: Sequence[Recording],
) -> None:
    """Distil the teachers into a copy of the round's policy, on all recorded frames, and save it."""
    from worldrl.methods.imitation.distillation import distil

    folder, learner = loop.run.stage(f"round-{number}-6-distil").folder, policies[AFTER].copy()
    assert isinstance(learner, TokenPolicy)  # its network is one
    episodes = [episode for recording in recordings for episode in recording.episodes]
    distil(
        learner,
        teachers,
        make_samples(episodes, learner.chunk_length, learner.more),
        config=loop.plan.distillation,
        seed=loop.plan.seed_of("distil", number),
        folder=folder / "checkpoints",
        log=loop.log,
        series=f"distil-{number}",
    )
    learner.save(folder / POLICY, parents=[parent(policy.folder) for policy in policies.values()])


def measured(loop: Loop, number: int, folder: Path) -> dict[str, Any]:
    """Measure the distilled policy on the states of both others, beside the better one."""
    from worldrl.evaluation.policy.compare import compare

    earlier = loop.run.stage(f"round-{number}-5-accept")
    name = BEFORE if earlier.summary[BEFORE]["k"] > earlier.summary[AFTER]["k"] else AFTER
    found = loop.plan.simulator.evaluate(
        folder / POLICY, protocol=checks.accept_protocol(loop, number), out=folder / "evaluation"
    )
    metrics = compare(EvalResult.load(earlier.folder / name), found).metrics()
    facts = {key: metrics[key] for key in ("after", "paired", "tasks")}
    return {"beside": name, "kept": not checks.loses(metrics["paired"]), **facts}


def combined_line(number: int, found: Mapping[str, Any]) -> str:
    """Say what became of the distilled policy."""
    rate, end = found["after"], "kept" if found["kept"] else "left out"
    return f"round {number}: {from_before(found)}: {rate['k']} real successes of {rate['n']}; {end}"


def from_before(found: Mapping[str, Any]) -> str:
    """Say for how many tasks the policy before the round was the teacher."""
    old = sum(name == BEFORE for name in found["better"].values())
    return f"{old} of {len(found['better'])} tasks distilled from the policy before it"
