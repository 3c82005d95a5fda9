"""Between world model and gates of ``worldrl train-vla``: the policy learns to act on imagined images as on recorded ones.

Blur that a world model adds makes a policy act otherwise, most of all in long tasks: its imagined rollouts then fail
where real ones succeed, and nothing can be learned from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from worldrl.core.storage.artefact import parent
from worldrl.core.storage.log import console
from worldrl.core.types import Episode
from worldrl.jobs.vla.artefacts import Recording, SavedPolicy, SavedWorld
from worldrl.jobs.vla.loop import Loop
from worldrl.policies.token.policy import TokenPolicy
from worldrl.recipes.stages import POLICY
from worldrl.rollout.agents.policy_folder import policy_parent

if TYPE_CHECKING:
    from worldrl.rollout.imagined.observation_pairs import ObservationPairs

MEASURED = 1000
"""Pairs on which the divergence is measured, before and after."""


def consistent_policy(
    loop: Loop, number: int, policy: SavedPolicy, world: SavedWorld, recordings: Sequence[Recording]
) -> SavedPolicy:
    """Return the policy after consistency training on ``recordings``; itself where the settings ask for none.

    A branch that takes this round's gates without the training goes without it.
    """
    stage = loop.run.stage(f"round-{number}-2-consistency")
    past = any(loop.run.stage_finished(f"round-{number}-{name}") for name in ("3-gates", "4-improve"))
    if not stage.finished and (past or not loop.plan.consistency.steps):
        return policy
    if not stage.finished:
        loop.plan.suite.close()
        episodes = [episode for recording in recordings for episode in recording.episodes]
        learner = policy.copy()
        assert isinstance(learner, TokenPolicy)  # the plan has refused others
        summary = learn(loop, number, learner, world, episodes)
        learner.save(stage.folder / POLICY, parents=[policy_parent(policy.folder), parent(world.folder)])
        loop.finish(stage, summary)
        console().print(said(number, summary), markup=False, highlight=False)
    return loop.policy(stage.folder / POLICY)


def learn(
    loop: Loop, number: int, learner: TokenPolicy, world: SavedWorld, episodes: Sequence[Episode]
) -> dict[str, Any]:
    """Train ``learner`` in place; return its divergence on both kinds of observations, before and after."""
    from worldrl.methods.imitation.distillation import distil
    from worldrl.rollout.imagined.observation_pairs import observation_pairs

    config, series = loop.plan.consistency, f"consistency-{number}"
    seed = loop.plan.seed_of("consistency", number)
    pairs = observation_pairs(world.model, episodes, learner.more, count=config.episodes, seed=seed, series=series)
    world.release()
    teacher = deepcopy(learner).requires_grad_(False)
    before = divergences(learner, teacher, pairs)
    distil(
        learner,
        dict.fromkeys(pairs.recorded.task, teacher),
        pairs.recorded,
        imagined=pairs.imagined,
        config=config,
        seed=seed,
        folder=loop.run.stage(f"round-{number}-2-consistency").folder / "checkpoints",
        log=loop.log,
        series=series,
    )
    return {"pairs": len(pairs), "before": before, "after": divergences(learner, teacher, pairs)}


@torch.no_grad()
def divergences(policy: TokenPolicy, teacher: TokenPolicy, pairs: ObservationPairs) -> dict[str, float]:
    """KL from the teacher on recorded observations to the policy on ``recorded`` and ``imagined`` ones (nats a number)."""
    from worldrl.methods.imitation.distillation import distillation_loss

    few = pairs.select(spread_rows(len(pairs)))
    teachers = dict.fromkeys(few.recorded.task, teacher)
    shown = {"recorded": few.recorded, "imagined": few.imagined}
    return {
        name: float(distillation_loss(policy, teachers, few.recorded, shown=samples)[0])
        for name, samples in shown.items()
    }


def spread_rows(count: int) -> torch.Tensor:
    """At most :data:`MEASURED` rows, evenly spread."""
    return torch.linspace(0, count - 1, min(count, MEASURED)).long()


def said(number: int, found: Mapping[str, Any]) -> str:
    """Say what the training changed."""
    before, after = found["before"]["imagined"], found["after"]["imagined"]
    return (
        f"round {number}: on imagined images the policy's divergence is {before:.3g} before and {after:.3g} after "
        f"consistency training (nats a number; {found['after']['recorded']:.2g} on recorded ones)"
    )
