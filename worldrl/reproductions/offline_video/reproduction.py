"""``offline-video``: RAVL, NEUBAY and policy-guided diffusion on the latents of a video world model.

No paper has this experiment: the three algorithms use the bundled video world model of the embedded suite as a state
world. One step is a chunk of 8 control steps, the reward the outcome head's success
(:mod:`worldrl.rollout.imagined.latent_world`). The data of a seed are episodes of a noisy scripted expert in one task. All
agents observe keypoints that were learned once (:mod:`worldrl.methods.offline.latent.latent_keypoints`), since with all
numbers of a latent frame an agent overfits a few dozen episodes. They act in the first principal components of the
recorded chunks (:mod:`worldrl.world_models.latent.chunk_basis`). The measure is success in MuJoCo, against behaviour
cloning on the same data:

- ``bc``: repeats the chunks of the data;
- ``td3_bc``: learns from the data alone, for comparison with ``pgd``;
- ``ravl``: many critics on rollouts of k chunks in the latents;
- ``neubay``: a recurrent agent on rollouts to the time limit. The world is one model without uncertainty, so it runs
  without posterior and without uncertainty threshold;
- ``pgd``: TD3+BC on trajectories of latents and chunks from a diffusion model, guided by the agent; never steps the world.

RAVL and NEUBAY begin as clones of the data, with targets in [0, 1] (:mod:`worldrl.methods.offline.latent.video_latents`): a
random actor has only recorded successes and learns nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.rng import initial_weights, stream_seed
from worldrl.core.storage.jsonfile import read_json, write_json
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.report.model import Table
from worldrl.methods.offline.agent import Agent, Facts
from worldrl.methods.offline.bc import Bc
from worldrl.methods.offline.branches import BranchConfig, Branches
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.latent.latent_keypoints import KeypointTraining, fit_keypoints
from worldrl.methods.offline.latent.video_latents import AGENTS
from worldrl.methods.offline.neubay.long_rollouts import Episodes, LongRolloutConfig
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.methods.offline.neubay.training import NeubayTraining, train_neubay
from worldrl.methods.offline.ravl import Ravl
from worldrl.methods.offline.td3_bc import Td3Bc
from worldrl.methods.offline.training import OfflineTraining, train_offline
from worldrl.recipes.offline.latent_actor import LatentEnvironment, limit_in_chunks
from worldrl.recipes.offline.worlds import FirstUnguided, latent_trajectories
from worldrl.recipes.world_model.start import BUNDLED, weights_folder
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.findings import Claim, Findings, Results, column, side_by_side
from worldrl.reproductions.offline_video.settings import LatentSettings
from worldrl.reproductions.stage_sharing import shared
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.imagined.latent_world import LatentWorld, RecordedLatents, recorded_latents
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec
from worldrl.world_models.latent.chunk_basis import ChunkBasis
from worldrl.world_models.latent.keypoints import KeypointEncoder
from worldrl.world_models.state.guided_rollouts import GuidedRolloutConfig, GuidedRollouts
from worldrl.world_models.state.trajectory_diffusion import (
    TrajectoryDiffusion,
    TrajectoryDiffusionConfig,
    TrajectoryTraining,
    fit_trajectories,
)
from worldrl.world_models.state.trajectory_sampling import GuidanceConfig, SamplerConfig
from worldrl.world_models.video.model import VideoWorldModel

METHODS = ("bc", "td3_bc", "ravl", "neubay", "pgd")
CLAIMS = (("ravl", "bc"), ("neubay", "bc"), ("pgd", "bc"), ("pgd", "td3_bc"))
"""Pairs of methods: the first should succeed more often."""
NAMES = {"bc": "behaviour cloning", "td3_bc": "TD3+BC without trajectories"}
LEVELS, SAMPLER_STEPS = 2, 16  # The trajectory model's resolutions of a few chunks, and Heun steps of a draw
SETTINGS: Mapping[str, LatentSettings] = {
    "paper": LatentSettings(),
    # The quick setting's data, twice the updates, and enough seeds for a difference of twenty points of success.
    "full": LatentSettings(
        seeds=5, episodes=60, noise=0.1, goal_offset=0.01, updates=8000, hidden=128, rate=1e-3, starts=128, critics=5,
        features=64, model_steps=4000, trajectories=256, memory=64,
    ),
    "quick": LatentSettings(
        episodes=60, noise=0.1, goal_offset=0.01, updates=4000, hidden=128, rate=1e-3, starts=128, critics=5,
        clone_steps=1000, features=64, model_steps=1500, trajectories=256, memory=64, tests=50,
    ),
    "tiny": LatentSettings(
        seeds=2, episodes=2, noise=0.0, updates=3, batch=20, hidden=8, starts=4, refresh=2, critics=2, features=8,
        clone_steps=1, window=2, model_steps=2, trajectories=4, memory=8, tests=1, keypoint_steps=2,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Latents:
    """Data of a stage."""

    model: VideoWorldModel  # the world model
    recorded: RecordedLatents  # the data in its latents
    facts: Facts  # of the data
    encoder: KeypointEncoder | None = None  # of observations; None for the latents themselves
    basis: ChunkBasis | None = None  # of actions; None for whole chunks
    explained: float | None = None  # R² of held-out chunks that were cloned through the encoder


def run(settings: LatentSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Train one agent and play it in the simulator; ``folder`` holds its checkpoints."""
    latents = open_latents(settings, cell.seed, folder)
    with initial_weights(cell.seed, "offline-video", cell.method):
        agent = make_agent(settings, cell.method, latents.facts)
    train(settings, cell, agent, latents, folder)
    environment = LatentEnvironment(latents.model, (settings.task,), latents.encoder, latents.basis)
    found = environment.play(agent, seed=cell.seed, episodes=settings.tests, gamma=settings.discount)
    seen = {} if latents.explained is None else {"keypoints_explained": latents.explained}
    seen |= {} if latents.basis is None else {"components_explained": float(latents.basis.explained)}
    return {"success": float(found.returns.mean()), "episodes": len(found.index)} | seen


def open_latents(settings: LatentSettings, seed: int, folder: Path) -> Latents:
    """Record the seed's episodes, unless another stage has, and encode them with the codec."""
    model = VideoWorldModel.load(weights_folder(BUNDLED))
    source = stream_seed(seed, "offline-video", "data") % 2**31
    specs = [EpisodeSpec(settings.task, index, source, source="noisy_expert") for index in range(settings.episodes)]
    actor = ExpertActor(noise=settings.noise, goal_offset=settings.goal_offset)

    def make(place: Path) -> None:
        options = EnvOptions(image_size=model.config.codec.image_size)
        collect_dataset(place / "dataset", [CollectPlan(actor, specs)], EmbeddedPlayer(options, workers=0))

    place = shared(folder, f"data-seed-{seed}", make)
    episodes = EpisodeDataset.open(place / "dataset").load()
    recorded, encoder, explained = recorded_latents(model, episodes, stride=settings.stride), None, None
    if settings.keypoints:
        encoder, explained = open_keypoints(settings, seed, model, episodes, folder)
        recorded = recorded.through(encoder)
    basis = ChunkBasis.of(recorded.rows.action, settings.components) if settings.components else None
    recorded = recorded if basis is None else recorded.in_basis(basis)
    data = latent_trajectories(recorded, settings.task)
    facts = Facts.of(recorded.rows, data.returns(), updates=settings.updates)
    return Latents(model, recorded, facts, encoder, basis, explained)


def open_keypoints(
    settings: LatentSettings, seed: int, model: VideoWorldModel, episodes: Sequence[Episode], folder: Path
) -> tuple[KeypointEncoder, float]:
    """Learn the seed's keypoints, unless another stage has; return them with R² of held-out chunks."""

    def make(place: Path) -> None:
        latents = recorded_latents(model, episodes, stride=1)
        training, shape = KeypointTraining(settings.keypoint_steps), model.codec.latent_shape
        encoder, report = fit_keypoints(latents, shape, settings.keypoints, training, seed=seed)
        encoder.save(place / "encoder")
        write_json(place / "report.json", asdict(report))

    place = shared(folder, f"keypoints-seed-{seed}", make)
    return KeypointEncoder.load(place / "encoder"), read_json(place / "report.json")["explained"]


def make_agent(settings: LatentSettings, method: str, facts: Facts) -> Agent:
    """Make one method's agent."""
    hidden, rate = (settings.hidden, settings.hidden), settings.rate
    config = AGENTS["td3_bc" if method == "pgd" else method]
    if method == "bc":
        return Bc(replace(config, hidden=hidden, learning_rate=rate), facts)
    config = replace(config, hidden=hidden, discount=settings.discount, polyak=settings.polyak)
    if method in ("td3_bc", "pgd"):
        return Td3Bc(replace(config, learning_rate=rate, alpha=settings.alpha), facts)
    config = replace(config, clone_steps=settings.clone_steps, clone_rate=rate, actor_rate=settings.actor_rate)
    config = replace(config, temperature=settings.temperature)
    if method == "neubay":
        memory = MemoryConfig(settings.memory, settings.memory // 2)
        return Neubay(replace(config, memory=memory, encoder_rate=rate / 10, head_rate=rate), facts)
    return Ravl(replace(config, critics=settings.critics, diversity=settings.diversity, critic_rate=rate), facts)


def train(settings: LatentSettings, cell: Cell, agent: Agent, latents: Latents, folder: Path) -> None:
    """Train an agent with its own loop, resuming from ``folder``."""
    rows = latents.recorded.rows
    if isinstance(agent, Neubay):
        train_recurrent(settings, cell.seed, agent, latents, folder / "checkpoints")
        return
    imagination, imagining = imagined(settings, cell, latents, folder)
    every = max(1, settings.updates // 10)
    train_offline(
        f"offline-video-{cell.method}",
        agent,
        rows,
        OfflineTraining(settings.updates, settings.batch, settings.updates, every, every),
        seed=cell.seed,
        imagination=imagination,
        imagining=imagining,
        folder=folder / "checkpoints",
    )


def imagined(settings: LatentSettings, cell: Cell, latents: Latents, folder: Path) -> tuple[Any, Imagining | None]:
    """Return the source of a method's imagined rows, and their amount; None for those on data alone."""
    if cell.method in ("bc", "td3_bc"):
        return None, None
    if cell.method == "pgd":
        model = trajectory_model(settings, cell.seed, latents, folder)
        sampler = SamplerConfig(steps=SAMPLER_STEPS, churn=80 / 256 * SAMPLER_STEPS)
        guidance = GuidanceConfig(coefficient=settings.guidance)
        policy_rollouts = GuidedRollouts(model, GuidedRolloutConfig(settings.trajectories), sampler, guidance)
        return FirstUnguided(policy_rollouts), Imagining(
            settings.window, 1 - settings.trajectory_share, settings.trajectories, settings.updates // 4 or 1, 1
        )
    config = BranchConfig(settings.starts, settings.horizon)
    return Branches(world_of(latents), len(latents.recorded.rows), config), imagining_of(settings)


def imagining_of(settings: LatentSettings) -> Imagining:
    """Rollouts at the size of these settings."""
    return Imagining(settings.horizon, settings.real_ratio, settings.starts, settings.refresh, settings.generations)


def world_of(latents: Latents) -> LatentWorld:
    """Return the world model as a state world that begins at recorded moments."""
    return LatentWorld(
        latents.model,
        latents.recorded.records,
        SuccessRule.of(latents.model.config.outcome),
        latents.encoder,
        latents.basis,
    )


def trajectory_model(settings: LatentSettings, seed: int, latents: Latents, folder: Path) -> TrajectoryDiffusion:
    """Train the diffusion model of windows of latents and chunks."""
    model, _ = fit_trajectories(
        "offline-video-model",
        latents.recorded.rows,
        latents.recorded.episode,
        TrajectoryDiffusionConfig(length=settings.window, features=settings.features, levels=LEVELS),
        TrajectoryTraining(settings.model_steps, stride=1, checkpoint_steps=max(1, settings.model_steps // 10)),
        seed=seed,
        folder=folder / "model",
    )
    return model


def train_recurrent(settings: LatentSettings, seed: int, agent: Neubay, latents: Latents, folder: Path) -> None:
    """Train NEUBAY's agent on rollouts up to the task's time limit."""
    limit = limit_in_chunks([settings.task], latents.model)
    rollouts = max(1, settings.starts // 2)
    updates_per_step = settings.refresh / (rollouts * limit)
    config = NeubayTraining(
        updates=settings.updates,
        rows=settings.batch,
        buffer=settings.generations * rollouts * (limit + 1),
        updates_per_step=updates_per_step,
        rollouts=LongRolloutConfig(rollouts, limit),
        checkpoint_generations=max(1, settings.updates // settings.refresh // 10),
    )
    recorded = latents.recorded
    episodes = Episodes.of(recorded.rows, recorded.episode)
    train_neubay(agent, world_of(latents), episodes, config, seed=seed, folder=folder)


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: LatentSettings, results: Results) -> Findings:
    """Compare each method's success with behaviour cloning's of the same seed."""
    success = {m: column(results, m, "success") for m in METHODS}
    claims = [
        Claim(f"{m} succeeds more often than {NAMES[other]}", "success, difference", success[m] - success[other])
        for m, other in CLAIMS
    ]
    rows = [(m, f"{x.mean():.1%}", f"{x.min():.1%}", f"{x.max():.1%}") for m, x in success.items()]
    table = Table("Success in the simulator", ("Method", "Mean", "Lowest seed", "Highest"), rows)
    by_seed = np.stack([success[m] for m in METHODS], axis=1).tolist()
    figure = side_by_side("Success in the simulator", "success", METHODS, {"success": by_seed}, percent=True)
    return Findings(claims, [table], [figure], notes(settings))


def notes(settings: LatentSettings) -> list[str]:
    """Notes on the method."""
    learned = f"{settings.keypoints} keypoints, learned once per seed by cloning"
    seen = learned if settings.keypoints else "all numbers of a latent frame"
    chosen = (
        f"{settings.components} principal components of a chunk" if settings.components else "all numbers of a chunk"
    )
    apart = "one control step" if settings.stride == 1 else f"{settings.stride} control steps"
    return [
        f"{settings.task}: {settings.episodes} episodes per seed of a scripted expert with noise {settings.noise:g} and "
        f"goals off by {100 * settings.goal_offset:g} cm; {settings.tests} test episodes, the same ones for all methods.",
        "The world model is the bundled one; it was trained on data of its own, which no agent here sees.",
        f"Agents see {seen}, choose {chosen}, and learn from trajectories that begin {apart} apart.",
        f"RAVL and NEUBAY clone in the first {settings.clone_steps} of {settings.updates} updates; their targets stay in [0, 1].",
        "NEUBAY's agent runs without a posterior: a single world model has no members to disagree.",
    ]
