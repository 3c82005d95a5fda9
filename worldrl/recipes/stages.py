"""Stages that several jobs share: each resumes from the files in its folder and leaves an artefact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Policy
from worldrl.core.lookup import named
from worldrl.core.rng import initial_weights
from worldrl.core.storage.capacity import require_model_memory
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.ranks import rank
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.world_model.rollout_error import padded_actions, replayed_success, whole_chunks
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.policies.exploration import Exploration
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.language import task_instructions, training_instructions_or_known
from worldrl.registry import ALGORITHMS
from worldrl.rewards.success import SuccessRule, calibrate_threshold, debounced_score
from worldrl.rollout.agents.actors import AnyActor, ImaginedPlanActor
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts, execute, imagine_policy
from worldrl.rollout.imagined.starts import EMBEDDED_BACKEND, SimulatorBackend
from worldrl.rollout.real.collect import CollectPlan
from worldrl.world_models.loading import VIDEO, WAN, AnyVideoModel
from worldrl.world_models.video.training_config import WorldModelTraining

if TYPE_CHECKING:
    from worldrl.world_models.wan.training import WanTraining

POLICY = "policy"  # Folder name of a policy inside a stage
LEARNERS = {
    VIDEO: "worldrl.recipes.world_model.learn_video:learn_video",
    WAN: "worldrl.recipes.world_model.learn_wan:learn_wan",
}
"""Backbone → what trains a world model of it."""


def learn_policy(
    folder: Path,
    episodes: Sequence[Episode],
    *,
    model: TokenPolicyConfig,
    training: BehaviourCloning,
    seed: int,
    device: torch.device,
    log: MetricLog | None,
    trained: dict[str, Any] | None,
) -> dict[str, Any]:
    """Clone demonstrations into ``folder/policy``, with their provenance ``trained``; return the training report."""
    statistics = PolicyStatistics.from_episodes(episodes)
    require_model_memory(lambda: TokenPolicy(model, statistics), device, "model")
    with initial_weights(seed, "policy"):
        policy = TokenPolicy(model, statistics)
    policy.trained_on = trained
    report = ALGORITHMS.get("behaviour_cloning")(
        policy,
        episodes,
        config=training,
        seed=seed,
        folder=folder / "checkpoints",
        log=log,
        device=device,
        paraphrases=training_instructions_or_known(episodes),
    )
    if rank() == 0:
        policy.save(folder / POLICY)
    return report.to_json()


def learn_world_model(
    folder: Path,
    model: AnyVideoModel,
    episodes: Sequence[Episode],
    training: WorldModelTraining | WanTraining,
    *,
    seed: int,
    log: MetricLog | None,
    series: str = "dynamics",
) -> dict[str, Any]:
    """Train all parts that have steps in place; return the last numbers. SettingError for another backbone."""
    if model.backbone != training.backbone:
        raise SettingError(
            f"start: those weights are a {model.backbone!r} world model's, but backbone={training.backbone} was asked for; "
            f"give backbone={model.backbone}, or start=scratch"
        )
    known = episodes.tasks() if isinstance(episodes, EpisodeDataset) else {episode.task for episode in episodes}
    instructions = task_instructions(sorted(known))
    learn = named(LEARNERS[model.backbone])
    return learn(folder, model, episodes, training, instructions, seed=seed, log=log, series=series)


def split_held_out(
    episodes: Sequence[Episode], share: float, *, seed: int
) -> tuple[Sequence[Episode], list[Episode], list[Episode]]:
    """Split episodes into training, calibration and gate sets (half of ``share`` each); a motion stays in one."""
    training, calibration, gates = held_out_places(episodes, share, seed=seed)
    kept = episodes.subset(training) if isinstance(episodes, EpisodeDataset) else [episodes[i] for i in training]
    return kept, [episodes[i] for i in calibration], [episodes[i] for i in gates]


def held_out_places(episodes: Sequence[Episode], share: float, *, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Positions of the episodes of training, calibration and gates; nothing of a dataset is decoded."""
    from worldrl.rollout.real.motions import shuffled_motions

    order = shuffled_motions(episodes, seed=seed, name="held-out")
    count = held_out_count(len(order), share)
    shares = (order[2 * count :], order[:count], order[count : 2 * count])
    training, calibration, gates = ([i for group in part for i in group] for part in shares)
    return training, calibration, gates


def held_out_count(episodes: int, share: float) -> int:
    """Number of ``episodes`` for the calibration; the gates get as many."""
    return int(share * episodes) // 2


def calibrate(
    model: AnyVideoModel,
    episodes: Sequence[Episode],
    policy_rollouts: PolicyRollouts | None = None,
    *,
    target_precision: float,
    seed: int,
    simulator_backend: SimulatorBackend = EMBEDDED_BACKEND,
) -> SuccessRule:
    """Set the success threshold of the model's configuration and return its rule.

    From held-out episodes, whose true actions are replayed, and imagined rollouts, which are executed in the simulator.
    ``target_precision`` is the least share of imagined successes that are real.
    """
    head = model.config.outcome
    parts = [_replayed_scores(model, episodes, seed)] if episodes else []
    if policy_rollouts is not None:
        score = debounced_score(policy_rollouts.probability, head.debounce)
        parts.append((score, execute(policy_rollouts, simulator_backend) >= 0))
    if parts:
        score, actual = (np.concatenate(part) for part in zip(*parts, strict=True))
        head.threshold = calibrate_threshold(
            score, actual, target_precision=target_precision, default=head.min_threshold
        )
    return SuccessRule.of(head)


def _replayed_scores(
    model: AnyVideoModel, episodes: Sequence[Episode], seed: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    steps = whole_chunks(max(map(len, episodes)), model.chunk_length)
    actions = np.stack([padded_actions(episode, steps) for episode in episodes])
    probability = replayed_success(model, episodes, actions, seed=seed)
    score = debounced_score(probability, model.config.outcome.debounce)
    return score, np.array([episode.success for episode in episodes])


def imagined_plan(
    file: Path,
    model: AnyVideoModel,
    policy: Policy,
    tasks: Sequence[str],
    count: int,
    *,
    seed: int,
    image_size: int,
    exploration: Exploration,
    simulator_backend: SimulatorBackend = EMBEDDED_BACKEND,
    candidates: int = 1,
) -> CollectPlan[AnyActor]:
    """Let the policy act in imagination, ``count`` times per task, into ``file``, and plan to execute the rollouts.

    Each is the most probable success of ``candidates`` from its start.
    """
    if not file.exists():
        imagine_policy(
            model,
            policy,
            tasks,
            count,
            seed=seed,
            horizon=simulator_backend.horizons(tasks),
            image_size=image_size,
            exploration=exploration,
            simulator_backend=simulator_backend,
            candidates=candidates,
            debounce=model.config.outcome.debounce,
        ).save(file)
    return CollectPlan(
        ImaginedPlanActor(str(file)),
        [simulator_backend.placed(spec) for spec in PolicyRollouts.load(file).specs("dream")],
    )
