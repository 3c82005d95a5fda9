"""What every arm of ``eva`` shares with its seed: demonstrations, a video model that plans, and an inverse dynamics.

All three are made once per seed, of the same demonstrations; a part of these is kept apart for the inverse dynamics'
deviations and noise floor, and to execute what real videos show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from worldrl.core.device import resolve_device
from worldrl.core.rng import stream_seed
from worldrl.core.types import Episode, ResetRecord
from worldrl.data.dataset import EpisodeDataset
from worldrl.jobs.idm_stages import IDM, learn_idm, motion_basis, through_codec
from worldrl.jobs.opening import choose_tasks
from worldrl.jobs.reproductions.shared import shared
from worldrl.jobs.stages import learn_world_model, split_held_out
from worldrl.jobs.world_model_start import SCRATCH, WORLD_MODEL, starting_world_model
from worldrl.rewards.columns import choose_columns, recorded_names
from worldrl.rewards.decoded import DecodedReward
from worldrl.rewards.idm_training import IdmTraining
from worldrl.rewards.inverse_dynamics import IdmConfig, InverseDynamics
from worldrl.rollout.actors import ExpertActor
from worldrl.rollout.collect import CollectPlan, collect_dataset, embedded_options
from worldrl.rollout.decoded_plans import check_targets
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
        demonstrations: per task.
        kept: share of them that neither model learns from.
        image_size: pixels of the head camera.
        chunk: control steps of a chunk.
        stride: control steps between imagined frames.
        width: of the video model; its codec has two thirds.
        depth: blocks of the video model.
        codec_steps: of the codec's training.
        world_steps: of the video model's.
        batch: windows per step of both.
        idm_width: channels of the inverse dynamics.
        idm_steps: of its training.
        clip: frames of the clips that its noise floor is measured on.
        iterations: of the alignment.
        prompts: starts per iteration.
        chunks: length of the videos that are aligned.
        denoising: steps per chunk in alignment.
        rate: learning rate of the alignment.
        explored: videos per start that Sol-RL looks at.
        tests: initial states per task.
        horizon: control steps that are planned and executed; 0 takes each task's own.
        proposals: videos per stage of the staged plans.
    """

    seeds: int = 5
    tasks: str = KIND
    demonstrations: int = 100
    kept: float = 0.2
    image_size: int = 64
    chunk: int = 16
    stride: int = 4
    width: int = 192
    depth: int = 6
    codec_steps: int = 2000
    world_steps: int = 8000
    batch: int = 32
    idm_width: int = 48
    idm_steps: int = 6000
    clip: int = 8
    iterations: int = 100
    prompts: int = 8
    chunks: int = 3
    denoising: int = 4
    rate: float = 3e-5
    explored: int = 24
    tests: int = 60
    horizon: int = 0
    proposals: int = 4


@dataclass(frozen=True)
class Parts:
    """What an arm begins with.

    Attributes:
        model: the video model; every arm has a copy of its own.
        idm: reads the command.
        learned: demonstrations that both learned from.
        kept: those that neither did.
        frame_s: seconds between imagined frames.
    """

    model: VideoWorldModel
    idm: InverseDynamics
    learned: Sequence[Episode]
    kept: Sequence[Episode]
    frame_s: float

    @property
    def reward(self) -> DecodedReward:
        """The reward that alignment climbs and that plans are chosen by."""
        assert self.idm.basis is not None  # it reads positions
        return DecodedReward(self.idm, {TERM: self.idm.basis.rewards[TERM]}, self.idm.basis)


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
    dataset = EpisodeDataset.open(data).load()
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
    return Parts(model, idm, learned, [*scaling, *apart], settings.stride / dataset.fps)


def record(settings: EvaSettings, seed: int, place: Path) -> None:
    """Record the experts' demonstrations."""
    tasks, source = task_names_of(settings), stream_seed(seed, "eva", "demonstrations") % 2**31
    specs = [
        EpisodeSpec(task, index, source, source="expert") for task in tasks for index in range(settings.demonstrations)
    ]
    options = embedded_options(tasks, settings.image_size)
    collect_dataset(
        place / "dataset", [CollectPlan(ExpertActor(), specs)], env_options=options, workers=0, hold_steps=8
    )


def make_planner(
    settings: EvaSettings, seed: int, dataset: EpisodeDataset, learned: Sequence[Episode], place: Path
) -> None:
    """Train the video model from nothing: every other window is told its instruction instead of its actions."""
    width = settings.width
    config = VideoWorldModelConfig(
        codec=CodecConfig(image_size=settings.image_size, width=2 * width // 3, heads=4),
        dynamics=DynamicsConfig(
            chunk_length=settings.chunk,
            frame_stride=settings.stride,
            width=width,
            depth=settings.depth,
            heads=6,
            planning=True,
        ),
    )
    training = WorldModelTraining(
        codec_steps=settings.codec_steps,
        steps=settings.world_steps,
        batch=settings.batch,
        action_dropout=0.5,
        negative_share=0.0,  # a plan of a sentence that the episode does not fulfil would be a lie
        event_share=0.2,
        outcome_steps=0,  # nobody asks this model whether it succeeded
    )
    model = starting_world_model(SCRATCH, config, dataset.embodiment, seed=seed, device=resolve_device("cpu"))
    if not isinstance(model, VideoWorldModel):
        raise TypeError("a configuration of the video world model makes one")
    learn_world_model(place, model, learned, training, seed=seed, log=None)
    model.save(place / WORLD_MODEL)


def make_idm(
    settings: EvaSettings,
    seed: int,
    model: VideoWorldModel,
    dataset: EpisodeDataset,
    split: tuple[Sequence[Episode], Sequence[Episode], Sequence[Episode]],
    place: Path,
) -> None:
    """Train an inverse dynamics that reads the command off real frames and off what the codec makes of them."""
    learned, scaling, apart = split
    look = {"frame_stride": settings.stride, "camera": dataset.cameras[0]}
    idm = learn_idm(
        place,
        learned,
        scaling,
        choose_columns(["command"], recorded_names(dataset.embodiment)),
        config=IdmConfig(window=3, width=settings.idm_width),
        training=IdmTraining(steps=settings.idm_steps, batch=settings.batch),
        restore=through_codec(model),
        seed=seed,
        device=torch.device("cpu"),
        log=None,
        **look,
    )
    dt, frames = settings.stride / dataset.fps, settings.clip
    idm.basis, *_ = motion_basis(
        idm, learned, apart, frames=frames, dt=dt, limits=None, restore=through_codec(model), **look
    )
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
