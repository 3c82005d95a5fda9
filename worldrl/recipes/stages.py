"""Stages that several jobs share: train a policy, train a world model, calibrate, measure gates.

Each takes the folder of its stage, resumes from the files in it and leaves an artefact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Policy
from worldrl.core.rng import initial_weights, numpy_stream
from worldrl.core.storage.capacity import require_model_memory
from worldrl.core.storage.log import MetricLog, read_metrics
from worldrl.core.training.ranks import rank
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.world_model.rollout_error import padded_actions, replay, whole_chunks
from worldrl.methods.imitation.behaviour_cloning import BehaviourCloning, train_policy
from worldrl.policies.exploration import Exploration
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.language import task_instructions, training_instructions_or_known
from worldrl.rewards.success import SuccessRule, calibrate_threshold, debounced_score
from worldrl.rollout.agents.actors import AnyActor, ImaginedPlanActor
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts, execute, imagine_policy
from worldrl.rollout.imagined.starts import EMBEDDED_BACKEND, SimulatorBackend
from worldrl.rollout.real.collect import CollectPlan
from worldrl.rollout.real.motions import shuffled_motions
from worldrl.world_models.loading import AnyVideoModel
from worldrl.world_models.video.config import CodecKind
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import fit_codec, fit_dynamics
from worldrl.world_models.video.training_config import WorldModelTraining

if TYPE_CHECKING:
    from worldrl.world_models.wan.model import WanWorldModel
    from worldrl.world_models.wan.training import WanTraining

POLICY = "policy"
"""Folder name of a policy inside a stage."""
DYNAMICS = "dynamics"
"""Folder of a training's checkpoints."""


def learn_policy(
    folder: Path,
    episodes: Sequence[Episode],
    *,
    model: TokenPolicyConfig,
    training: BehaviourCloning,
    seed: int,
    device: torch.device,
    log: MetricLog,
    trained: dict[str, Any] | None,
) -> dict[str, Any]:
    """Clone demonstrations into ``folder/policy``, with their provenance ``trained``; return the training report."""
    statistics = PolicyStatistics.from_episodes(episodes)
    require_model_memory(lambda: TokenPolicy(model, statistics), device, "model")
    with initial_weights(seed, "policy"):
        policy = TokenPolicy(model, statistics)
    policy.trained_on = trained
    report = train_policy(
        policy,
        episodes,
        config=training,
        seed=seed,
        folder=folder / "checkpoints",
        log=log,
        device=device,
        paraphrases=training_instructions_or_known(episodes),
    )
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
    """Train all parts that have steps in place; return the last logged numbers.

    Raises:
        SettingError: the settings are for another backbone than the model.
    """
    from worldrl.world_models.wan.model import WanWorldModel
    from worldrl.world_models.wan.training import WanTraining

    known = episodes.tasks() if isinstance(episodes, EpisodeDataset) else {episode.task for episode in episodes}
    instructions = task_instructions(sorted(known))
    if isinstance(model, WanWorldModel) and isinstance(training, WanTraining):
        return learn_wan(folder, model, episodes, training, instructions, seed=seed, log=log, series=series)
    if isinstance(model, VideoWorldModel) and isinstance(training, WorldModelTraining):
        return _learn_video(folder, model, episodes, training, instructions, seed=seed, log=log, series=series)
    own, other = ("wan", "video") if isinstance(model, WanWorldModel) else ("video", "wan")
    raise SettingError(
        f"start: those weights are a {own!r} world model's, but backbone={other} was asked for; give backbone={own}, or "
        "start=scratch"
    )


def learn_wan(
    folder: Path,
    model: WanWorldModel,
    episodes: Sequence[Episode],
    training: WanTraining,
    instructions: TaskInstructions,
    *,
    seed: int,
    log: MetricLog | None,
    series: str = "dynamics",
) -> dict[str, Any]:
    """Train a Wan world model in place, in all processes, then its outcome ensemble in the first; return the last logged numbers."""
    from worldrl.world_models.video.outcome_training import fit_outcome
    from worldrl.world_models.wan.fit import fit_wan  # it brings torch.distributed
    from worldrl.world_models.wan.training import take

    name = series.replace("dynamics", "outcome")
    if training.steps:
        fit_wan(
            model,
            episodes,
            training,
            instructions=instructions,
            seed=seed,
            device=model.device,
            folder=folder / DYNAMICS,
            log=log,
            series=series,
        )
    if model.outcome is not None and training.outcome_steps and rank() == 0:
        order = numpy_stream(seed, "outcome-episodes").permutation(len(episodes))
        fit_outcome(
            whole_wan(model, folder),
            take(episodes, order[: training.outcome_episodes].tolist()),
            training,
            instructions=instructions,
            seed=seed,
            folder=folder / "outcome",
            log=log,
            series=name,
            rows=training.batch,
        )
    numbers = last_numbers(log, series) | last_numbers(log, name)
    return {key: value for key, value in numbers.items() if "/" in key}


def whole_wan(model: WanWorldModel, folder: Path) -> WanWorldModel:
    """A Wan world model with all parameters in this process, after its training in ``folder``."""
    from worldrl.world_models.wan.fit import whole

    return whole(model, folder / DYNAMICS)


def _learn_video(
    folder: Path,
    model: VideoWorldModel,
    episodes: Sequence[Episode],
    training: WorldModelTraining,
    instructions: TaskInstructions,
    *,
    seed: int,
    log: MetricLog | None,
    series: str,
) -> dict[str, Any]:
    """Train codec, dynamics, distilled sampler, outcome head and restorer in place, each with steps; return the last numbers."""
    from worldrl.world_models.video.distillation import fit_distilled
    from worldrl.world_models.video.outcome_training import fit_outcome
    from worldrl.world_models.video.restorer_training import fit_restorer

    numbers: dict[str, Any] = {}
    if training.codec_steps and model.config.codec_kind is CodecKind.patch:
        frames = torch.from_numpy(np.concatenate([episode.main_view for episode in episodes]))
        fit_codec(model, frames, training, seed=seed, folder=folder / "codec", log=log)
        numbers |= last_numbers(log, "codec")
    parts = (
        (partial(fit_dynamics, instructions=instructions), DYNAMICS, training.steps),
        (partial(fit_distilled, instructions=instructions), "distillation", training.distill_steps),
        (partial(fit_outcome, instructions=instructions), "outcome", training.outcome_steps),
        (fit_restorer, "restorer", training.restorer_steps),
    )
    for fit_part, part, steps in parts:
        name = series.replace("dynamics", part)
        if steps:
            fit_part(model, episodes, training, seed=seed, folder=folder / part, log=log, series=name)
            numbers |= {key: value for key, value in last_numbers(log, name).items() if "/" in key}
    return numbers


def last_numbers(log: MetricLog | None, series: str) -> dict[str, Any]:
    """Last logged numbers of a training; from the log, since a resumed session may find it finished."""
    if log is None:
        return {}
    lines = [line for line in read_metrics(log.path.parent) if line["series"] == series]
    return lines[-1]["values"] if lines else {}


def split_held_out(
    episodes: Sequence[Episode], share: float, *, seed: int
) -> tuple[Sequence[Episode], list[Episode], list[Episode]]:
    """Split episodes into training, calibration and gate sets; the last two get half of ``share`` each.

    The same motion in several visual styles (``worldrl restyle``) is in one set only. Training episodes of a dataset stay undecoded.
    """
    order = shuffled_motions(episodes, seed=seed, name="held-out")
    count = held_out_count(len(order), share)
    shares = (order[:count], order[count : 2 * count], order[2 * count :])
    calibration, gates, training = ([i for group in part for i in group] for part in shares)
    kept = episodes.subset(training) if isinstance(episodes, EpisodeDataset) else [episodes[i] for i in training]
    return kept, [episodes[i] for i in calibration], [episodes[i] for i in gates]


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

    Uses recorded episodes outside training, whose true actions are replayed with noise of ``seed``, and imagined rollouts of a policy,
    which are executed in the simulator. ``target_precision`` is the least share of imagined successes that are real.
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
    return SuccessRule(head.threshold, head.debounce)


def _replayed_scores(
    model: AnyVideoModel, episodes: Sequence[Episode], seed: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    steps = whole_chunks(max(map(len, episodes)), model.chunk_length)
    actions = np.stack([padded_actions(episode, steps) for episode in episodes])
    probability = replay(model, episodes, actions, seed=seed).probability
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
) -> CollectPlan[AnyActor]:
    """Let the policy act in imagination, ``count`` times per task, and plan to execute the rollouts in the simulator.

    The rollouts are stored in ``file``, which the workers read; an existing file is not imagined again.
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
        ).save(file)
    return CollectPlan(
        ImaginedPlanActor(str(file)),
        [simulator_backend.placed(spec) for spec in PolicyRollouts.load(file).specs("dream")],
    )
