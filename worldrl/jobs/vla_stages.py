"""The stages of ``worldrl train-vla``. Each reads and writes folders, and does nothing when it is finished.

::

    01-demonstrations ─► 02-policy ─► 03-before
                             │
             round r:  r-1-practice ─► r-2-world-model ─► r-3-gates ─► r-4-improve ─► next round
                                                                            │
                                                      04-verify ◄───────────┴─► 05-after
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.algorithms.improve import imagine_batch, imagined_env, improve
from worldrl.core.artefact import artefact_hash, parent
from worldrl.core.device import resolve_dtype
from worldrl.core.log import MetricLog, console
from worldrl.core.rng import stream_seed
from worldrl.core.run import RunDirectory, Stage
from worldrl.core.stats import wilson
from worldrl.core.types import Episode
from worldrl.data.dataset import EpisodeDataset
from worldrl.evaluation.evaluate import evaluate_policy
from worldrl.evaluation.gates import measure_gates, require
from worldrl.evaluation.protocol import EvalProtocol, embedded_protocol
from worldrl.evaluation.result import EvalResult
from worldrl.evaluation.world_model import padded_actions, replay
from worldrl.jobs.evaluate import video_writer
from worldrl.jobs.stages import (
    POLICY,
    WORLD_MODEL,
    calibrate,
    learn_policy,
    learn_world_model,
    split_held_out,
    starting_world_model,
)
from worldrl.jobs.train_world_model import show_gates
from worldrl.jobs.vla_settings import TrainVlaSettings
from worldrl.policies.token_policy import TokenPolicy
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.actors import AnyActor, ExpertActor, PolicyActor
from worldrl.rollout.collect import CollectPlan, collect_dataset
from worldrl.rollout.reset_store import ResetStore, keyframe_records
from worldrl.rollout.specs import EnvOptions, EpisodeSpec
from worldrl.rollout.starts import replay_in_simulator, simulator_starts
from worldrl.world_models.video import VideoWorldModel

DATASET = "dataset"


@dataclass(frozen=True)
class Loop:
    """What every stage needs.

    Attributes:
        settings: of the job.
        run: its run directory.
        log: its metrics.
        device: where the networks live.
        tasks: names.
    """

    settings: TrainVlaSettings
    run: RunDirectory
    log: MetricLog
    device: torch.device
    tasks: tuple[str, ...]

    def seed(self, *names: str | int) -> int:
        """Derive a stage's seed; below 2**31, which every simulator keeps."""
        return stream_seed(self.settings.seed, "train-vla", *names) % 2**31

    def finish(self, stage: Stage, summary: dict[str, Any]) -> None:
        """Finish a stage with the wall time spent on the run so far."""
        stage.finish({**summary, "run_wall_s": self.run.wall_s})

    def collect(self, folder: Path, plans: Sequence[CollectPlan]) -> dict[str, Any]:
        """Record episodes; return how many, and how many succeeded, by source."""
        rows = collect_dataset(
            folder,
            plans,
            env_options=EnvOptions(image_size=self.settings.policy.image_size),
            workers=self.settings.workers,
            envs_per_worker=self.settings.envs_per_worker,
            hold_steps=self.settings.practice.hold_steps,
        )
        sources = sorted({str(row["source"]) for row in rows})
        counts = {s: [row for row in rows if row["source"] == s] for s in sources}
        return {s: wilson(sum(bool(row["success"]) for row in found), len(found)) for s, found in counts.items()}

    def specs(self, source: str, count: int, seed: int) -> list[EpisodeSpec]:
        """Name ``count`` episodes of each task."""
        return [EpisodeSpec(task, index, seed, source=source) for task in self.tasks for index in range(count)]


def load(folder: Path) -> list[Episode]:
    """Load a dataset's episodes into memory."""
    return list(EpisodeDataset.open(folder).load())


# -- before the rounds ---------------------------------------------------------------------------------------------


def demonstrations(loop: Loop) -> Path:
    """Record the expert's demonstrations."""
    stage = loop.run.stage("01-demonstrations")
    if not stage.finished:
        specs = loop.specs("expert", loop.settings.demonstrations, loop.seed("demonstrations"))
        plan = CollectPlan(ExpertActor(), specs)
        loop.finish(stage, {"success": loop.collect(stage.folder / DATASET, [plan])})
    return stage.folder / DATASET


def supervised_policy(loop: Loop, demos: Path) -> Path:
    """Clone the demonstrations."""
    stage = loop.run.stage("02-policy")
    if not stage.finished:
        report = learn_policy(
            stage.folder,
            load(demos),
            model=loop.settings.policy,
            training=loop.settings.cloning,
            seed=loop.seed("policy"),
            device=loop.device,
            log=loop.log,
        )
        loop.finish(stage, report)
    return stage.folder / POLICY


def protocol(loop: Loop) -> EvalProtocol:
    """Return the protocol of both evaluations."""
    evaluation = loop.settings.evaluation
    return embedded_protocol(
        loop.tasks,
        episodes_per_task=evaluation.episodes_per_task,
        seed=evaluation.seed,
        chunk_length=loop.settings.policy.chunk_length,
        image_size=loop.settings.policy.image_size,
        temperature=evaluation.temperature,
    )


def evaluate(loop: Loop, name: str, policy: Path) -> EvalResult:
    """Measure a policy in the simulator."""
    stage = loop.run.stage(name)
    if not stage.finished:
        result = evaluate_policy(
            policy,
            protocol(loop),
            workers=loop.settings.workers,
            envs_per_worker=loop.settings.envs_per_worker,
            out=stage.folder / "evaluation",
            record_videos=loop.settings.evaluation.videos,
            on_recording=video_writer(stage.folder / "videos", protocol(loop).control_hz),
        )
        loop.finish(stage, result.metrics())
    return EvalResult.load(stage.folder / "evaluation")


# -- one round -----------------------------------------------------------------------------------------------------


def practice(loop: Loop, number: int, policy: Path) -> Path:
    """Record the policy's own rollouts and the noisy expert's."""
    stage = loop.run.stage(f"round-{number}-1-practice")
    if not stage.finished:
        settings = loop.settings.practice
        scratch = loop.settings.start == "scratch" and number == 1
        expert_episodes = loop.settings.scratch.expert_episodes if scratch else settings.expert_episodes
        sources: list[tuple[str, AnyActor, int]] = [
            ("policy", PolicyActor(str(policy), temperature=settings.temperature), settings.policy_episodes),
            ("noisy_expert", ExpertActor(settings.noise, settings.goal_offset), expert_episodes),
        ]
        plans = [
            CollectPlan(actor, loop.specs(source, count, loop.seed("practice", number, source)))
            for source, actor, count in sources
        ]
        loop.finish(stage, {"success": loop.collect(stage.folder / DATASET, plans)})
    return stage.folder / DATASET


def world_model(loop: Loop, number: int, demos: Path, practices: Sequence[Path], before: Path | None) -> Path:
    """Refine the world model on everything seen so far, then calibrate its success head."""
    stage = loop.run.stage(f"round-{number}-2-world-model")
    if not stage.finished:
        settings, seed = loop.settings, loop.seed("world-model", number)
        embodiment = EpisodeDataset.open(demos).embodiment
        start = settings.start if before is None else str(before)
        model = starting_world_model(start, settings.world_model, embodiment, seed=seed, device=loop.device)
        training, calibration, _ = practice_split(loop, practices)
        scratch = settings.start == "scratch" and before is None
        numbers = learn_world_model(
            stage.folder,
            model,
            [*load(demos), *training],
            settings.scratch.training if scratch else settings.training,
            seed=seed,
            log=loop.log,
        )
        model.compute_dtype = resolve_dtype(settings.dtype, loop.device)
        rule = calibrate(model, calibration, target_precision=settings.target_precision, seed=seed)
        parents = [] if before is None else [parent(before)]
        model.save(stage.folder / WORLD_MODEL, parents=parents)
        loop.finish(stage, {"training": numbers, "threshold": rule.threshold, "episodes": len(training)})
    return stage.folder / WORLD_MODEL


def practice_split(loop: Loop, practices: Sequence[Path]) -> tuple[list[Episode], list[Episode], list[Episode]]:
    """Split each practice set, so that an episode held out once is never trained on later."""
    parts = [
        split_held_out(load(folder), loop.settings.held_out, seed=loop.seed("held-out", number))
        for number, folder in enumerate(practices, start=1)
    ]
    training, calibration, gates = ([e for part in parts for e in part[k]] for k in range(3))
    return training, calibration, gates


def load_world_model(loop: Loop, folder: Path) -> tuple[VideoWorldModel, SuccessRule]:
    """Load a world model ready to imagine, with its rule of success."""
    model = VideoWorldModel.load(folder, loop.device)
    model.compute_dtype = resolve_dtype(loop.settings.dtype, loop.device)
    return model, SuccessRule(model.config.success.threshold, model.config.success.debounce)


def gates(loop: Loop, number: int, world: Path, practices: Sequence[Path]) -> dict[str, Any]:
    """Measure the gates on held-out practice; stop or warn when one fails.

    Raises:
        GateError: a gate failed and ``gates=stop``.
    """
    stage = loop.run.stage(f"round-{number}-3-gates")
    model, rule = load_world_model(loop, world)
    _, _, held_out = practice_split(loop, practices)
    seed = loop.seed("gates", number)
    measured, metrics = measure_gates(model, held_out, rule, loop.settings.thresholds, seed=seed)
    show_gates(measured, f"gates of round {number}, {len(held_out)} held-out episodes")
    if loop.settings.gates == "stop":
        require(measured)
    if not stage.finished:
        save_replays(stage.folder, model, held_out, seed=seed)
        loop.finish(stage, {"gates": [asdict(gate) for gate in measured], "held_out": len(held_out), **metrics})
    return stage.summary


def save_replays(folder: Path, model: VideoWorldModel, episodes: Sequence[Episode], *, seed: int) -> None:
    """Keep a few held-out episodes, real and imagined, for the report: successes first, then failures."""
    chosen = sorted(episodes, key=lambda e: not e.success)[:2] + sorted(episodes, key=lambda e: e.success)[:2]
    steps = -(-max(map(len, chosen)) // model.chunk_length) * model.chunk_length
    result = replay(model, chosen, np.stack([padded_actions(e, steps) for e in chosen]), seed=seed)
    names = [f"{e.task}, {'success' if e.success else 'failure'}" for e in chosen]
    np.savez_compressed(folder / "replays.npz", real=result.real, imagined=result.imagined, names=np.array(names))


def improved_policy(loop: Loop, number: int, policy: Path, world: Path, practices: Sequence[Path]) -> Path:
    """Improve the policy in imagination."""
    stage = loop.run.stage(f"round-{number}-4-improve")
    if not stage.finished:
        model, rule = load_world_model(loop, world)
        learner = TokenPolicy.load(policy, loop.device)
        config = loop.settings.improvement
        store = reset_store(loop, model, practices, number)
        env = imagined_env(model, store, rule, rows=config.grpo.groups * config.grpo.group_size, horizon=horizons(loop))
        start = imagined_success(loop, learner, env, seed=loop.seed("imagined-before", number))
        history = improve(
            learner,
            env,
            config,
            seed=loop.seed("improve", number),
            folder=stage.folder / "checkpoints",
            log=loop.log,
            series=f"improve-{number}",
        )
        end = imagined_success(loop, learner, env, seed=loop.seed("imagined-after", number))
        learner.save(stage.folder / POLICY, parents=[parent(policy), parent(world)])
        loop.finish(stage, {"imagined_before": start, "imagined_after": end, "history": history, "starts": len(store)})
    return stage.folder / POLICY


def horizons(loop: Loop) -> dict[str, int]:
    """Return each task's horizon (control steps)."""
    return dict(protocol(loop).horizon)


def reset_store(loop: Loop, model: VideoWorldModel, practices: Sequence[Path], number: int) -> ResetStore:
    """Collect start states: fresh initial states of the simulator, and keyframes of the practice so far."""
    config = loop.settings.improvement
    initial = simulator_starts(
        loop.tasks,
        config.starts_per_task,
        seed=loop.seed("starts", number),
        memory_frames=model.memory_frames,
        image_size=loop.settings.policy.image_size,
    )
    episodes = [episode for folder in practices for episode in load(folder)]
    keyframes = keyframe_records(
        episodes,
        margin=config.keyframe_margin,
        memory_frames=model.memory_frames,
        frame_stride=model.frame_stride,
    )
    return ResetStore(initial, keyframes)


def imagined_success(loop: Loop, policy: TokenPolicy, env: Any, *, seed: int) -> dict[str, Any]:
    """Rate of imagined success from initial states alone, sampled as in training."""
    config = replace(loop.settings.improvement, p_keyframe=0.0)
    success = imagine_batch(env, policy, config, seed=seed).success
    return wilson(int(success.sum()), len(success))


# -- after the rounds ----------------------------------------------------------------------------------------------


def verify(loop: Loop, policy: Path, world: Path) -> dict[str, Any]:
    """Replay imagined rollouts of the final policy in the simulator, action by action: does imagined success hold?"""
    stage = loop.run.stage("04-verify")
    if not stage.finished:
        model, rule = load_world_model(loop, world)
        learner = TokenPolicy.load(policy, loop.device)
        predicted, actual = zip(*(_verify_task(loop, task, learner, model, rule) for task in loop.tasks), strict=True)
        from worldrl.evaluation.world_model import outcome_report

        report = outcome_report(np.concatenate(predicted), np.concatenate(actual))
        rows = {
            "imagined": wilson(int(np.concatenate(predicted).sum()), len(np.concatenate(predicted))),
            "same_actions_real": wilson(int(np.concatenate(actual).sum()), len(np.concatenate(actual))),
        }
        loop.finish(stage, {**report, **rows, "policy": artefact_hash(policy), "world_model": artefact_hash(world)})
        console().print(f"imagined success confirmed by the simulator: {report['precision']}")
    return stage.summary


def _verify_task(loop: Loop, task: str, policy: TokenPolicy, model: VideoWorldModel, rule: SuccessRule):
    from worldrl.rollout.imagined_rollouts import imagine_rollouts

    count, seed = loop.settings.evaluation.verify, loop.seed("verify", task)
    starts = simulator_starts(
        [task], count, seed=seed, memory_frames=model.memory_frames, image_size=loop.settings.policy.image_size
    )
    env = imagined_env(model, ResetStore(starts), rule, rows=count, horizon=horizons(loop))
    rollouts = imagine_rollouts(env, policy, starts, group_size=1, seed=seed)
    action = policy.decode(rollouts.token.to(policy.device)).cpu().numpy()  # [T, B, L, 7]
    actions = [action[rollouts.valid[:, row].numpy(), row].reshape(-1, 7) for row in range(count)]
    real = replay_in_simulator(
        task, [(index, seed) for index in range(count)], actions, image_size=loop.settings.policy.image_size
    )
    return rollouts.success.numpy(), real
