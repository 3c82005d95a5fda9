"""What every arm of ``eva`` shares with its seed: demonstrations, a video model that plans, an inverse dynamics, maybe a judge.

All are made once per seed, of the same demonstrations; a part of these is kept apart for the inverse dynamics'
deviations and noise floor, and to execute what real videos show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.log import MetricLog
from worldrl.core.rng import stream_seed
from worldrl.core.types import Episode, ResetRecord
from worldrl.data.dataset import EpisodeDataset
from worldrl.jobs.idm_stages import IDM, learn_idm, motion_basis, through_codec
from worldrl.jobs.opening import choose_tasks
from worldrl.jobs.reproductions.eva_judge import make_judge, open_judge, with_failures
from worldrl.jobs.reproductions.shared import shared
from worldrl.jobs.stages import learn_world_model, split_held_out
from worldrl.jobs.world_model_start import SCRATCH, WORLD_MODEL, starting_world_model
from worldrl.rewards.columns import choose_columns, recorded_names
from worldrl.rewards.decoded import DecodedReward
from worldrl.rewards.idm_training import IdmTraining, Restore
from worldrl.rewards.inverse_dynamics import IdmConfig, InverseDynamics
from worldrl.rewards.several import SeveralRewards
from worldrl.rollout.actors import AnyActor, ExpertActor
from worldrl.rollout.collect import CollectPlan, collect_dataset, embedded_options
from worldrl.rollout.decoded_plans import check_targets
from worldrl.rollout.judged_success import SuccessReward
from worldrl.rollout.specs import EpisodeSpec
from worldrl.rollout.starts import simulator_starts
from worldrl.world_models.config import CodecConfig, DynamicsConfig, VideoWorldModelConfig
from worldrl.world_models.training_config import WorldModelTraining
from worldrl.world_models.video import VideoWorldModel

KIND = "bimanual"
TERM = "moving_executability"
"""The reward: EVA's, with constants re-fitted to the noise floor, times the motion content."""


@dataclass(frozen=True)
class EvaSettings:
    """Settings of demonstrations, models, alignment and tests.

    Attributes:
        seeds: how many.
        tasks: ``bimanual`` for all seven, or one task's name.
        demonstrations: per task, failures of the expert among them; only successes are learned from.
        noisy_share: of them whose expert is disturbed, so that states beside its path are seen, and how it comes back.
        noise: how much, in the expert's own units: 1 cm of each tool per control step.
        hold_steps: control steps after the first success, so that a plan can end in rest.
        kept: share of the successes that neither model learns from.
        image_size: pixels of the head camera.
        chunk: control steps of a chunk.
        stride: control steps between imagined frames.
        codec_width: tokens of the frame codec.
        codec_steps: of its training.
        width: of the video model.
        depth: its blocks.
        world_steps: of its training.
        world_rate: its peak learning rate.
        ema: of the averaged weights that are kept.
        batch: windows per step.
        first_chunk_share: of the windows, those that start an episode, as every plan does.
        event_share: those around gripper changes and contacts.
        static_share: static clips.
        action_dropout: windows that are told the instruction instead of their actions, which is to plan; the rest keeps what
            ``imagined-true-actions`` diagnoses.
        bootstrap: steps that go on from what the model imagined itself.
        unroll: chunks of a window.
        latent_noise: on the codec's latents where the inverse dynamics learns through it, and where its noise is measured.
        idm_width: channels of the inverse dynamics.
        idm_steps: of its training.
        idm_rate: its peak learning rate.
        success_weight: of the judged success (``eva_judge``) beside the executability's 1, mixed by GDPO; 0 trains no judge.
        judge_steps: of the judge's outcome head.
        iterations: of the alignment.
        prompts: starts per iteration.
        chunks: length of the videos that are aligned, and of those that the reward's constants are measured on.
        denoising: steps per chunk, in alignment and in tests.
        rate: learning rate of the alignment.
        ratio_clip: range of the ratios in GRPO and BranchGRPO; a chunk of 64 pixels has a tenth of the numbers that 1e-4 is for.
        explored: videos per start that Sol-RL looks at, with a quarter of the steps.
        look_every: iterations between two measurements of the reward on kept starts.
        tests: initial states per task.
        horizon: control steps that are planned; then the last targets are held to the task's limit. 0 plans to that limit.
        proposals: videos per stage of the staged plans.
    """

    seeds: int = 5
    tasks: str = KIND
    demonstrations: int = 240
    noisy_share: float = 0.5
    noise: float = 0.2
    hold_steps: int = 24
    kept: float = 0.1
    image_size: int = 64
    chunk: int = 16
    stride: int = 4
    codec_width: int = 128
    codec_steps: int = 4000
    width: int = 192
    depth: int = 6
    world_steps: int = 20000
    world_rate: float = 6e-4
    ema: float = 0.998
    batch: int = 32
    first_chunk_share: float = 0.3
    event_share: float = 0.2
    static_share: float = 0.0
    action_dropout: float = 0.9
    bootstrap: float = 0.5
    unroll: int = 3
    latent_noise: float = 0.15
    idm_width: int = 48
    idm_steps: int = 12000
    idm_rate: float = 2e-3
    success_weight: float = 0.0
    judge_steps: int = 1500
    iterations: int = 100
    prompts: int = 8
    chunks: int = 3
    denoising: int = 4
    rate: float = 3e-5
    ratio_clip: float = 1e-3
    explored: int = 48
    look_every: int = 5
    tests: int = 60
    horizon: int = 0
    proposals: int = 4

    def __post_init__(self) -> None:
        """Check the ranges that the rooms below do not check."""
        for name in ("noisy_share", "kept"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"change.{name}: must lie in [0, 1], got {getattr(self, name)}")
        task_names_of(self)
        if self.success_weight < 0:
            raise SettingError(f"change.success_weight: must be zero or more, got {self.success_weight}")

    @property
    def video_frames(self) -> int:
        """Frames of an aligned video, the recorded first one among them."""
        return 1 + self.chunks * self.chunk // self.stride


@dataclass(frozen=True)
class Parts:
    """What an arm begins with.

    Attributes:
        model: the video model; every arm has a copy of its own.
        idm: reads the command.
        learned: demonstrations that both learned from.
        kept: those that neither did.
        frame_s: seconds between imagined frames.
        judge: says whether a video shows success; None where its weight is 0.
        judge_worth: what it says of demonstrations that it has not learned from.
    """

    model: VideoWorldModel
    idm: InverseDynamics
    learned: Sequence[Episode]
    kept: Sequence[Episode]
    frame_s: float
    judge: SuccessReward | None = None
    judge_worth: Mapping[str, Any] | None = None

    @property
    def executability(self) -> DecodedReward:
        """EVA's reward of the decoded motion."""
        assert self.idm.basis is not None  # it reads positions
        return DecodedReward(self.idm, {TERM: self.idm.basis.rewards[TERM]}, self.idm.basis)

    @property
    def reward(self) -> SeveralRewards:
        """The reward that alignment climbs and that plans are chosen by: the executability, and the judge's where there is one."""
        return SeveralRewards([self.executability, *([] if self.judge is None else [self.judge])])


def task_names_of(settings: EvaSettings) -> list[str]:
    """Return the names of the tasks."""
    return choose_tasks([], KIND) if settings.tasks == KIND else choose_tasks([settings.tasks], None)


def open_parts(settings: EvaSettings, seed: int, folder: Path) -> Parts:
    """Make the seed's parts, unless another stage has, and load them.

    Args:
        settings: sizes.
        seed: of all draws.
        folder: of the stage that asks.
    """
    data = shared(folder, f"demonstrations-seed-{seed}", lambda place: record(settings, seed, place)) / "dataset"
    recorded = EpisodeDataset.open(data)
    dataset = recorded.subset(lambda episode: episode.success).load()
    if not len(dataset):
        raise SettingError(f"eva: the expert failed in all demonstrations in {data}; record more, or with less noise")
    learned, scaling, apart = split_held_out(dataset, settings.kept, seed=seed)
    planner = shared(
        folder, f"planner-seed-{seed}", lambda place: make_planner(settings, seed, dataset, learned, place)
    )
    model = VideoWorldModel.load(planner / WORLD_MODEL)
    place = shared(
        folder,
        f"idm-seed-{seed}",
        lambda place: make_idm(settings, seed, model, dataset, (learned, scaling, apart), place),
    )
    idm = InverseDynamics.load(place / IDM)
    check_targets(idm.columns, model.embodiment.actions)
    parts = Parts(model, idm, learned, [*scaling, *apart], settings.stride / dataset.fps)
    return with_judge(settings, seed, folder, parts, recorded, planner) if settings.success_weight else parts


def with_judge(
    settings: EvaSettings, seed: int, folder: Path, parts: Parts, recorded: EpisodeDataset, planner: Path
) -> Parts:
    """Add the judge, which learns from the failures too."""
    learned, unseen = with_failures(parts.learned, parts.kept, recorded, settings.kept, seed=seed)
    place = shared(
        folder,
        f"judge-seed-{seed}",
        lambda place: make_judge(planner / WORLD_MODEL, settings.judge_steps, learned, unseen, place, seed=seed),
    )
    return replace(parts, **open_judge(place))


def record(settings: EvaSettings, seed: int, place: Path) -> None:
    """Record the experts' demonstrations: steady ones, then disturbed ones from states of their own."""
    tasks, source = task_names_of(settings), stream_seed(seed, "eva", "demonstrations") % 2**31
    steady = settings.demonstrations - round(settings.noisy_share * settings.demonstrations)

    def plan(actor: ExpertActor, indices: range, label: str) -> CollectPlan[AnyActor]:
        specs = [EpisodeSpec(task, index, source, source=label) for task in tasks for index in indices]
        return CollectPlan(actor, specs)

    plans = [
        plan(ExpertActor(), range(steady), "expert"),
        plan(ExpertActor(noise=settings.noise), range(steady, settings.demonstrations), "noisy expert"),
    ]
    options = embedded_options(tasks, settings.image_size)
    collect_dataset(place / "dataset", plans, env_options=options, workers=0, hold_steps=settings.hold_steps)


def planner_config(settings: EvaSettings) -> VideoWorldModelConfig:
    """Sizes of the video model; its own sampler takes as many steps as the alignment's."""
    return VideoWorldModelConfig(
        codec=CodecConfig(image_size=settings.image_size, width=settings.codec_width, heads=4),
        dynamics=DynamicsConfig(
            chunk_length=settings.chunk,
            frame_stride=settings.stride,
            width=settings.width,
            depth=settings.depth,
            heads=6,
            sampling_steps=settings.denoising,
            planning=True,
        ),
    )


def planner_training(settings: EvaSettings) -> WorldModelTraining:
    """How the video model is trained: most windows are told their instruction instead of their actions."""
    return WorldModelTraining(
        codec_steps=settings.codec_steps,
        steps=settings.world_steps,
        batch=settings.batch,
        learning_rate=settings.world_rate,
        ema_decay=settings.ema,
        unroll=settings.unroll,
        bootstrap=settings.bootstrap,
        first_chunk_share=settings.first_chunk_share,
        static_share=settings.static_share,
        event_share=settings.event_share,
        action_dropout=settings.action_dropout,
        negative_share=0.0,  # a plan of a sentence that the episode does not fulfil would be a lie
        outcome_steps=0,  # nobody asks this model whether it succeeded: the judge is a copy
    )


def make_planner(
    settings: EvaSettings, seed: int, dataset: EpisodeDataset, learned: Sequence[Episode], place: Path
) -> None:
    """Train the video model from nothing; its curves are in ``place/metrics.jsonl``."""
    config, device = planner_config(settings), resolve_device("cpu")
    model = starting_world_model(SCRATCH, config, dataset.embodiment, seed=seed, device=device)
    if not isinstance(model, VideoWorldModel):
        raise TypeError("a configuration of the video world model makes one")
    with MetricLog(place) as log:
        learn_world_model(place, model, learned, planner_training(settings), seed=seed, log=log)
    model.save(place / WORLD_MODEL)


def look_through(settings: EvaSettings, model: VideoWorldModel, seed: int) -> Restore:
    """Show recorded frames as planned ones look: through the codec, with noise on its latents."""
    return through_codec(model, noise=settings.latent_noise, seed=seed)


def make_idm(
    settings: EvaSettings,
    seed: int,
    model: VideoWorldModel,
    dataset: EpisodeDataset,
    split: tuple[Sequence[Episode], Sequence[Episode], Sequence[Episode]],
    place: Path,
) -> None:
    """Train an inverse dynamics that reads the command off real frames and off what the codec makes of them.

    Its curves are in ``place/metrics.jsonl``.
    """
    learned, scaling, apart = split
    camera, restore = dataset.cameras[0], look_through(settings, model, seed)
    look = {"frame_stride": settings.stride, "camera": camera, "restore": restore}
    with MetricLog(place) as log:
        idm = learn_idm(
            place,
            learned,
            scaling,
            choose_columns(["command"], recorded_names(dataset.embodiment)),
            config=IdmConfig(window=3, width=settings.idm_width),
            training=IdmTraining(steps=settings.idm_steps, batch=settings.batch, learning_rate=settings.idm_rate),
            seed=seed,
            device=torch.device("cpu"),
            log=log,
            **look,
        )
    dt = settings.stride / dataset.fps
    idm.basis, *_ = motion_basis(idm, learned, apart, frames=settings.video_frames, dt=dt, limits=None, **look)
    idm.save(place / IDM)


def starting_states(
    settings: EvaSettings, parts: Parts, task: str, seed: int
) -> tuple[list[ResetRecord], list[tuple[int, int]]]:
    """Render a task's test states, which no demonstration begins at; return them and their ``(index, seed)``."""
    source = stream_seed(seed, "eva", "tests") % 2**31
    records = simulator_starts(
        [task],
        settings.tests,
        seed=source,
        memory_frames=parts.model.memory_frames,
        image_size=settings.image_size,
    )
    return records, [(index, source) for index in range(settings.tests)]
