"""What policies imagine in a world model, beside what the simulator says: part of ``worldrl evaluate-world-model``.

Each policy's imagined rollouts are executed with the same actions, and it acts freely from the same initial states.
Together they show whether imagined success follows real success, and which confidence score recognises false ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.observation import require_observed
from worldrl.core.renames import first_name
from worldrl.core.rng import stream_seed
from worldrl.core.statistics.intervals import Rate, auroc_within, wilson
from worldrl.core.storage.arrays import save_arrays
from worldrl.core.storage.run import RunDirectory, Stage
from worldrl.core.types import ResetRecord
from worldrl.evaluation.policy.ranking import correlation
from worldrl.evaluation.world_model.confidence import advantage, rank_sum, worth
from worldrl.evaluation.world_model.rollout_error import outcome_report
from worldrl.policies.exploration import Exploration
from worldrl.policies.remote.address import is_remote
from worldrl.recipes.suites.reality import Reality
from worldrl.rewards.grasp import GraspDynamics
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.similarity import commanded_columns
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.actors import PolicyActor
from worldrl.rollout.agents.policy_folder import REMOTE, acting_policy, policy_facts, policy_place, require_imaginable
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts, confirmed_by_execution, execute, imagine_policy
from worldrl.rollout.imagined.starts import SimulatorBackend
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.trust.confidence import confidence_scores
from worldrl.rollout.trust.resampled import ResampledRollouts, resample_rollouts
from worldrl.rollout.trust.shown_grasp import check_robot, grasp_error
from worldrl.rollout.trust.shown_motion import check_spacing, rollout_motion_error
from worldrl.settings import non_negative, positive, setting
from worldrl.world_models.loading import AnyVideoModel

SCORE, GRASP, SCORE_AND_GRASP = "score", "grasp_agreement", "score_and_grasp"
TOGETHER = "sum of the ranks of own score and grasp agreement among these rollouts"
"""What ``score_and_grasp`` is, for people; practice cannot go by it, since one rollout has no rank."""
ALIKE = "the same for all of these rollouts, as the agreement of a single member is"
UNASKED = {"motion_agreement": "give idm=FOLDER", GRASP: "give grasp=FOLDER", SCORE_AND_GRASP: "give grasp=FOLDER"}
"""Why a sign was not measured."""


@dataclass
class PolicyRolloutConfig:
    """Which policies imagine, and how much."""

    # policies; none leaves this part out.
    folders: list[str] = setting(
        [],
        "policies, worldrl's or lerobot's; their imagined rollouts are executed and compared with their real success",
    )
    imagined_rollouts: int = 30  # per task and policy.
    resampled_rollouts: int = 2  # rollouts imagined again with the same actions and other noise, at least 2.
    # simulator processes of the policies' free rollouts, 0 runs in this process; and of an external suite.
    workers: int = 2
    envs_per_worker: int = 8  # environments per process.
    # how the policies' actions are drawn, in imagination and in the simulator.
    exploration: Exploration = field(default_factory=Exploration)

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive("policies.imagined_rollouts", self.imagined_rollouts)
        positive("policies.envs_per_worker", self.envs_per_worker)
        non_negative("policies.workers", self.workers)
        if self.resampled_rollouts < 2:
            raise SettingError(
                f"policies.resampled_rollouts must be at least 2 (one has no spread), got {self.resampled_rollouts}"
            )


@dataclass(frozen=True)
class Readers:
    """Inverse dynamics that measure the imagined rollouts; None where there is none."""

    motion: InverseDynamics | None = None  # reads every frame
    grasp: GraspDynamics | None = None  # reads where an imagined rollout begins


@dataclass(frozen=True)
class Judged:
    """One policy's imagined rollouts and their executions."""

    metrics: dict[str, Any]  # as in `result.json`
    imagined: NDArray[np.bool_]  # bool `[E]`, imagined to succeed
    confirmed_by_execution: NDArray[np.bool_]  # bool `[E]`, and really did with the same actions
    signs: dict[str, NDArray[np.float64]]  # each sign of trust `[E]`
    task: tuple[str, ...]  # of each imagined rollout, `E` names


def open_readers(idm: str | None, grasp: str | None, model: AnyVideoModel) -> Readers:
    """Load what reads imagined rollouts from its folders; None where there is none.

    Raises SettingError (it reads nothing that is commanded, or does not fit the world model's robot or frames).
    """
    motion = None if idm is None else InverseDynamics.load(Path(idm), model.device)
    if motion is not None:
        commanded_columns(motion)
        check_spacing(motion, model.frame_stride)
    closing = None if grasp is None else GraspDynamics.load(Path(grasp), model.device)
    if closing is not None:
        check_robot(closing, model.embodiment.actions)
    return Readers(motion, closing)


def policies_beside_reality(
    run: RunDirectory,
    config: PolicyRolloutConfig,
    model: AnyVideoModel,
    tasks: Sequence[str],
    reality: Reality,
    *,
    seed: int,
    readers: Readers,
) -> dict[str, Any]:
    """Measure every policy; return what ``result.json`` says of them, nothing when there is none."""
    judged = [
        judge_policy(run.stage(f"03-policy-{number}"), config, policy_place(folder), model, tasks, reality, seed=stream_seed(seed, "policy", number) % 2**31, readers=readers)
        for number, folder in enumerate(config.folders, start=1)
    ]  # fmt: skip
    if not judged:
        return {}
    return {
        "policies": [one.metrics for one in judged],
        "imagined_real_pearson": correlation([one.metrics for one in judged]),
        "trust": trust(judged, seed=seed),
    }


def check_policies(folders: Sequence[str], model: AnyVideoModel, *, field: str = "policies.folders") -> None:
    """Refuse policies of the setting ``field`` that cannot act in this world model; agents on vectors have no image.

    ArtefactError without a policy; SettingError for another robot, chunk length or image size, or for observations that
    the model does not show.
    """
    fitting = {
        "chunk_length": model.chunk_length,
        "image_size": model.config.codec.image_size,
        "actions": model.embodiment.actions,
    }
    for folder in folders:
        facts, who = policy_facts(policy_place(folder)), f"{field}: the policy in {folder}"
        require_imaginable(
            policy_place(folder), who, frame_stride=model.frame_stride, memory_frames=model.memory_frames
        )
        differing = " and ".join(name for name, value in fitting.items() if getattr(facts, name) != value)
        if differing and facts.kind == REMOTE:
            raise SettingError(
                f"{who} has another {differing} than the world model; give "
                f"?chunk={model.chunk_length}&size={model.config.codec.image_size} in its address"
            )
        require_observed(facts.observation, model.observation, who, "the world model")
        if differing:
            raise SettingError(
                f"{who} has another {differing} than the world model; give policies that were made for it"
            )


def judge_policy(
    stage: Stage,
    config: PolicyRolloutConfig,
    folder: Path,
    model: AnyVideoModel,
    tasks: Sequence[str],
    reality: Reality,
    *,
    seed: int,
    readers: Readers,
) -> Judged:
    """Let one policy imagine and act; what an earlier session did is read."""
    outcome = model.config.outcome
    rule = SuccessRule.of(outcome)
    backend, size = reality.backend, model.config.codec.image_size
    files = {name: stage.folder / f"{name}.npz" for name in ("imagined_rollouts", "resampled")}
    if not files["imagined_rollouts"].exists():
        policy = acting_policy(folder, str(model.device))
        imagine_policy(
            model, policy, tasks, config.imagined_rollouts, seed=seed, horizon=backend.horizons(tasks), image_size=size, exploration=config.exploration,
            simulator_backend=backend,
        ).save(files["imagined_rollouts"])  # fmt: skip
    policy_rollouts, count = PolicyRollouts.load(files["imagined_rollouts"]), config.imagined_rollouts
    starts = partial(_starts, backend, model, policy_rollouts, count, seed)
    if not files["resampled"].exists():
        action = torch.from_numpy(policy_rollouts.action)
        resample_rollouts(model, starts(), action, config.resampled_rollouts, seed=seed).save(files["resampled"])
    if not stage.finished:
        free = _act_freely(stage.folder / "dataset", config, folder, policy_rollouts, reality)
        stage.finish({"real_step": execute(policy_rollouts, backend).tolist(), "real": free})
    real_step, imagined_step = np.array(stage.summary["real_step"]), policy_rollouts.success_step(rule)
    predicted, actual = imagined_step >= 0, confirmed_by_execution(imagined_step, real_step)
    metrics = {
        "path": str(folder),
        "hash": policy_facts(folder).hash,
        "imagined": wilson(int(predicted.sum()), len(policy_rollouts)),
        "real": stage.summary["real"],
        "same_actions": outcome_report(predicted, actual),
    }
    motion, grasp = None, None
    if readers.motion is not None:
        file = stage.folder / "surprise.npz"
        motion = _normalised_error(file, model, readers.motion, policy_rollouts, starts, seed)
    if readers.grasp is not None:
        grasp = _grasp(model, readers.grasp, policy_rollouts, imagined_step, starts())
    signs = confidence_scores(
        policy_rollouts.probability, ResampledRollouts.load(files["resampled"]), rule.debounce, motion, grasp
    )
    return Judged(metrics, predicted, actual, signs, tuple(policy_rollouts.task))


def _starts(
    backend: SimulatorBackend, model: AnyVideoModel, policy_rollouts: PolicyRollouts, count: int, seed: int
) -> list[ResetRecord]:
    tasks, size = list(dict.fromkeys(policy_rollouts.task)), model.config.codec.image_size
    layout = {"memory_frames": model.memory_frames, "image_size": size, "more": model.more}
    return backend.starts(tasks, count, seed=seed, **layout)


def _normalised_error(
    file: Path,
    model: AnyVideoModel,
    idm: InverseDynamics,
    policy_rollouts: PolicyRollouts,
    starts: Callable[[], list[ResetRecord]],
    seed: int,
) -> NDArray[np.float32]:
    """Error of inverse dynamics at every frame of the imagined rollouts ``[E, N]``, or what an earlier session found."""
    if not file.exists():
        found = rollout_motion_error(model, idm, starts(), torch.from_numpy(policy_rollouts.action), seed=seed)
        save_arrays(file, {"surprise": found})
    with np.load(file, allow_pickle=False) as data:
        return data["surprise"]


def _grasp(
    model: AnyVideoModel,
    grasp: GraspDynamics,
    policy_rollouts: PolicyRollouts,
    success_step: NDArray[np.int64],
    starts: list[ResetRecord],
) -> NDArray[np.float32]:
    """What inverse dynamics makes of the closing of the hand in each imagined rollout ``[E]``."""
    check_robot(grasp, policy_rollouts.actions)
    action = torch.from_numpy(policy_rollouts.action)
    return grasp_error(grasp, model.embodiment, starts, action, success_step, model.more)


def _act_freely(
    data: Path, config: PolicyRolloutConfig, policy: Path, policy_rollouts: PolicyRollouts, reality: Reality
) -> Rate:
    """Let the policy act in the simulator, drawing its actions alike, from the initial states it imagined from."""
    # The server of a remote policy draws.
    actor = PolicyActor(str(policy), exploration=None if is_remote(policy) else config.exploration)
    plan = CollectPlan(actor, [reality.backend.placed(spec) for spec in policy_rollouts.specs("policy")])
    rows = collect_dataset(data, [plan], reality.player())
    return wilson(sum(bool(row["success"]) for row in rows), len(rows))


def trust(judged: Sequence[Judged], *, seed: int) -> dict[str, Any]:
    """What each confidence score is worth among rollouts imagined to succeed, beside the rollout's own score.

    Among all of them a score that only separates easy tasks or good policies has a worth, too; ``within`` compares
    rollouts of one policy and task. ``not_measured`` gives reasons.
    """
    successes = np.concatenate([one.imagined for one in judged])
    true = np.concatenate([one.confirmed_by_execution for one in judged])[successes]
    signs = {name: np.concatenate([one.signs[name] for one in judged])[successes] for name in judged[0].signs}
    if not len(true):
        return {"imagined_successes": None, "auroc": {}, "within": {}, "over_score": {}, "not_measured": {}}
    if GRASP in signs:
        signs[SCORE_AND_GRASP] = rank_sum(signs[SCORE], signs[GRASP])
    differing = {name: sign for name, sign in signs.items() if np.ptp(sign)}
    score = signs[SCORE]
    strata = [(k, one.task[n]) for k, one in enumerate(judged) for n in np.flatnonzero(one.imagined)]
    return {
        "imagined_successes": wilson(int(true.sum()), len(true)),
        "auroc": {name: worth(sign, true, seed=seed, name=first_name(name)) for name, sign in differing.items()},
        "within": {name: auroc_within(sign, true, strata) for name, sign in differing.items()},
        "over_score": {
            name: advantage(sign, score, true, seed=seed, name=first_name(name))
            for name, sign in differing.items()
            if name != SCORE
        },
        "not_measured": {
            **{name: ALIKE for name in signs if name not in differing},
            **{name: why for name, why in UNASKED.items() if name not in signs},
        },
    }
