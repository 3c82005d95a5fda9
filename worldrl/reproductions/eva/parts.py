"""Parts of ``eva`` that all arms of a seed share: demonstrations, a planning video model, inverse dynamics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.rng import stream_seed
from worldrl.core.storage.log import MetricLog
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.recipes.motion.idm_stages import IDM, learn_idm, motion_basis, through_codec
from worldrl.recipes.stages import learn_world_model, split_held_out
from worldrl.recipes.world_model.start import SCRATCH, WORLD_MODEL, starting_world_model
from worldrl.reproductions.eva.settings import TERM, EvaSettings, limits_term, task_names_of
from worldrl.reproductions.stage_sharing import shared
from worldrl.rewards.config import IdmConfig, IdmTraining
from worldrl.rewards.execution_critic import ExecutionCritic, ExecutionReward
from worldrl.rewards.motion.basis import MotionReward
from worldrl.rewards.motion.broken_limits import CLEAR, WITHIN, clear_of_limits, within_limits
from worldrl.rewards.motion.decoded import DecodedReward
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.readout import choose_columns, recorded_names
from worldrl.rewards.motion.terms import RewardTerms
from worldrl.rollout.agents.actors import AnyActor, ExpertActor
from worldrl.rollout.imagined.decoded_plans import check_targets
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.embedded import embedded_options
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.world_models.video.config import CodecConfig, DynamicsConfig, VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training_config import WorldModelTraining


@dataclass(frozen=True)
class Parts:
    """Parts of an arm at its beginning."""

    model: VideoWorldModel  # the video model; every arm has a copy of its own
    idm: InverseDynamics  # decodes the command
    learned: Sequence[Episode]  # training demonstrations of both
    kept: Sequence[Episode]  # held-out demonstrations
    frame_s: float  # seconds between imagined frames
    limits: tuple[str, float] | None = None  # name of the reward's penalty on limits, and its margin; None without
    critic: ExecutionCritic | None = None  # predicts the success of plans; None without a collection
    critic_worth: Mapping[str, Any] | None = None  # accuracy on held-out plans, and the cost of collection and critic

    @property
    def executability(self) -> DecodedReward:
        """EVA's reward of the decoded motion, and the penalty on broken limits where it is set."""
        assert self.idm.basis is not None  # it reads positions
        kept: dict[str, MotionReward] = {}
        if self.limits is not None:
            name, margin = self.limits
            kept = {name: {WITHIN: within_limits, CLEAR: partial(clear_of_limits, margin=margin)}[name]}
        return DecodedReward(self.idm, {TERM: self.idm.basis.rewards[TERM], **kept}, self.idm.basis)

    @property
    def reward(self) -> RewardTerms:
        """The reward for alignment and for the choice of plans: of the motion, and the critic's where there is one."""
        learned = [] if self.critic is None else [ExecutionReward(self.idm, self.critic)]
        return RewardTerms([self.executability, *learned])


def open_parts(settings: EvaSettings, seed: int, folder: Path) -> Parts:
    """Make the seed's parts but the critic, unless another stage has, and load them; ``folder`` is the present stage's."""
    data = shared(folder, f"demonstrations-seed-{seed}", lambda place: record(settings, seed, place)) / "dataset"
    recorded = EpisodeDataset.open(data)
    dataset = recorded.subset(lambda episode: episode.success).load()
    if not len(dataset):
        raise SettingError(f"eva: the expert failed in all demonstrations in {data}; record more, or with less noise")
    learned, scaling, apart = split = split_held_out(dataset, settings.kept, seed=seed)
    name = f"planner-seed-{seed}"
    planner = shared(folder, name, lambda place: make_planner(settings, seed, dataset, learned, place))
    model = VideoWorldModel.load(planner / WORLD_MODEL)
    place = shared(folder, f"idm-seed-{seed}", lambda place: make_idm(settings, seed, model, dataset, split, place))
    idm = InverseDynamics.load(place / IDM)
    check_targets(idm.columns, model.embodiment.actions)
    kept, frame_s = [*scaling, *apart], settings.stride / dataset.fps
    limits = (limits_term(settings), settings.limits_margin) if settings.limits_weight else None
    return Parts(model, idm, learned, kept, frame_s, limits=limits)


def record(settings: EvaSettings, seed: int, place: Path) -> None:
    """Record the experts' demonstrations: undisturbed ones, then disturbed ones from other states."""
    tasks, source = task_names_of(settings), stream_seed(seed, "eva", "demonstrations") % 2**31
    steady = settings.demonstrations - round(settings.noisy_share * settings.demonstrations)

    def plan(actor: ExpertActor, indices: range, label: str) -> CollectPlan[AnyActor]:
        specs = [EpisodeSpec(task, index, source, source=label) for task in tasks for index in indices]
        return CollectPlan(actor, specs)

    plans = [
        plan(ExpertActor(), range(steady), "expert"),
        plan(ExpertActor(noise=settings.noise), range(steady, settings.demonstrations), "noisy expert"),
    ]
    options = embedded_options(tasks, settings.image_size, settings.domain)
    collect_dataset(place / "dataset", plans, EmbeddedPlayer(options, workers=0), hold_steps=settings.hold_steps)


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
    """Training of the video model: most windows have their instruction as input instead of their actions."""
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
        negative_share=0.0,  # the episode would not fulfil the plan's instruction
        outcome_steps=0,  # success is measured by execution
    )


def make_planner(
    settings: EvaSettings, seed: int, dataset: EpisodeDataset, learned: Sequence[Episode], place: Path
) -> None:
    """Train the video model from scratch; its curves are in ``place/metrics.jsonl``."""
    config, device = planner_config(settings), resolve_device("cpu")
    model = starting_world_model(SCRATCH, config, dataset.embodiment, seed=seed, device=device)
    if not isinstance(model, VideoWorldModel):
        raise TypeError("a configuration of the video world model makes one")
    with MetricLog(place) as log:
        learn_world_model(place, model, learned, planner_training(settings), seed=seed, log=log)
    model.save(place / WORLD_MODEL)


def make_idm(
    settings: EvaSettings,
    seed: int,
    model: VideoWorldModel,
    dataset: EpisodeDataset,
    split: tuple[Sequence[Episode], Sequence[Episode], Sequence[Episode]],
    place: Path,
) -> None:
    """Train an inverse dynamics model on real frames and on their reconstructions; curves in ``place/metrics.jsonl``."""
    learned, scaling, apart = split
    camera, restore = learned[0].main_camera, through_codec(model, noise=settings.latent_noise, seed=seed)
    view = {"frame_stride": settings.stride, "camera": camera, "restore": restore}
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
            **view,
        )
    dt = settings.stride / dataset.fps
    idm.basis, *_ = motion_basis(idm, learned, apart, frames=settings.video_frames, dt=dt, limits=None, **view)
    idm.save(place / IDM)
