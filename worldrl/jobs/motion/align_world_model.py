"""``worldrl align-world-model``: reinforcement learning of the video model, toward what a reward of its videos asks for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.core.device import resolve_device
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.interfaces import VideoReward
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import bootstrap
from worldrl.core.storage.artefact import artefact_hash, parent
from worldrl.core.storage.capacity import require_frames_memory, require_memory
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.log import MetricLog, console
from worldrl.core.training.ranks import refuse_many
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.report.store import publish
from worldrl.evaluation.world_model.motion_correlation import MotionRatio, motion_ratio
from worldrl.evaluation.world_model.rollout_error import padded_actions
from worldrl.jobs.motion.align_report import report_page, sentence
from worldrl.methods.alignment.align import MethodConfigs, align
from worldrl.methods.alignment.measure import MOTION, Measured, measure
from worldrl.methods.alignment.task import AlignmentConfig, AlignmentTask, Starts
from worldrl.nn.low_rank import LowRankConfig, add_low_rank, merge_low_rank, trained_share
from worldrl.recipes.motion.plan_critic import WORTH, learn_critic
from worldrl.recipes.motion.planned_execution import Planning, collect_plans, only_domain, plan_states
from worldrl.recipes.motion.video_rewards import RewardChoice, open_reward, open_rewards
from worldrl.recipes.rl_parts import ALIGNMENT, lacks_of_alignment, make_method, open_parts
from worldrl.recipes.run import open_run
from worldrl.recipes.tracking import Tracked
from worldrl.recipes.training_data import open_datasets, require_image_size, require_instructions
from worldrl.recipes.world_model.lineage import lineage, rewards_lineage
from worldrl.recipes.world_model.start import WORLD_MODEL, images_of, starting_world_model
from worldrl.registry import ALIGNMENTS, REWARD_MIXES
from worldrl.rewards.execution_critic import TERM as EXECUTION
from worldrl.rewards.execution_critic import ExecutionConfig
from worldrl.rewards.mixing import mean_of_terms
from worldrl.rewards.motion.decoded import DecodedReward, idm_reward
from worldrl.rewards.motion.inverse_dynamics import IDM_FOLDER
from worldrl.rewards.motion.terms import RewardTerms, chosen_terms
from worldrl.rollout.imagined.decoded_plans import check_targets
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.rollout.real.motions import shuffled_motions
from worldrl.settings import fraction, non_negative, one_of, positive, setting
from worldrl.world_models.loading import require_one_view
from worldrl.world_models.video.model import VideoWorldModel

CONDITIONINGS = ("instruction", "actions")
VIDEO_BYTES = 100
"""Least memory of a video's or a plan's key and terms."""
COLLECTION_KEPT = 0.1
"""Share of the executed plans that the critic does not learn from and is measured on."""


@dataclass
class AlignWorldModelSettings(Tracked):
    """Which video model is aligned, with what, and how."""

    run_dir: str = setting(
        "runs/align-world-model", "where everything is written; the model goes to run_dir/world_model"
    )
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    data: list[str] = setting(["runs/collect/dataset"], "dataset folders; videos begin at their episodes' first frames")
    start: str = setting(
        "runs/planner/world_model",
        "world-model folder to start from; train one with model.dynamics.planning=true training.action_dropout=0.5",
    )
    conditioning: str = setting(
        "instruction", "what the model is conditioned on: instruction (it plans), or actions (the recorded ones)"
    )
    rewards: list[str] = setting(
        ["idm.moving_executability"],
        "each NAME (all of its terms) or NAME.TERM: idm, similarity (with conditioning=actions), foresight, success, execution, rules, a "
        "plug-in's name",
    )
    weights: list[float] = setting(
        [], "one for each of rewards, of each of its terms; 0 only measures; none weighs all alike"
    )
    folders: dict[str, str] = setting(
        {},
        "folders.NAME=FOLDER: a reward's own artefact; idm, similarity: an inverse dynamics; foresight: train-idm's run "
        "directory; success: a world model that is not trained (that of start, for example); execution: train-idm's run "
        "directory with executed_plans above 0, else a run's execution folder; rules: a YAML file",
    )
    executed_plans: int = setting(
        0,
        "plans per task that the embedded simulator executes before the alignment, in the data's domain; a critic learns which "
        "succeed, for the reward execution; kept in run_dir/execution",
    )
    execution: ExecutionConfig = field(
        default_factory=lambda: ExecutionConfig(distance_penalty=1.0), metadata={"only_with": "executed_plans!=0"}
    )
    mixing: str = setting("gdpo", "how terms become one number: gdpo (each normalised in its group first) or mean")
    method: str = setting("flow_grpo", f"one of {', '.join(ALIGNMENTS.names())}")
    alignment: AlignmentConfig = field(default_factory=AlignmentConfig)
    lora: LowRankConfig = field(default_factory=LowRankConfig)
    methods: MethodConfigs = field(default_factory=MethodConfigs)
    held_out: float = setting(0.2, "share of the episodes whose starts are kept apart, to measure before and after")
    videos: int = setting(4, "videos per held-out start, before and after with the same noise")
    filmstrips: int = setting(4, "filmstrips on the report page")

    def __post_init__(self) -> None:
        """Check the ranges."""
        fraction("held_out", self.held_out)
        positive("videos", self.videos)
        non_negative("executed_plans", self.executed_plans)
        non_negative("filmstrips", self.filmstrips)
        one_of("conditioning", self.conditioning, CONDITIONINGS)
        one_of("mixing", self.mixing, REWARD_MIXES.names())
        one_of("method", self.method, ALIGNMENTS.names())
        open_parts(self.alignment.parts, ALIGNMENT, lacks_of_alignment(self.method))
        named = chosen_terms(self.rewards, self.weights)
        for name in self.folders:
            one_of("folders", name, tuple(named))
        if self.executed_plans and self.conditioning != "instruction":
            raise SettingError(
                f"executed_plans: plans are executed, and conditioning={self.conditioning} plans nothing; give conditioning=instruction"
            )
        if self.executed_plans and EXECUTION not in named:
            raise SettingError(
                "executed_plans: its critic is the reward execution, which is not among rewards; give rewards=[execution]"
            )
        if not self.data:
            raise SettingError("data must name at least one dataset folder; record one with worldrl collect")


def main(settings: AlignWorldModelSettings) -> dict[str, Any]:
    """Measure, align, measure again, save, write ``result.json`` and ``report.html``.

    Returns the metrics: every reward term with its weight and the motion, before and after with the paired gain,
    whether the motion was kept, and the costs.
    """
    refuse_many("align-world-model")
    device = resolve_device(settings.device)
    images = images_of(settings.start)
    datasets = open_datasets(settings.data, images)
    require_instructions(datasets)
    require_image_size(datasets[0], images.side, f"the size of start={settings.start}")
    require_room(settings, images.side)
    with open_run("align-world-model", settings) as run, MetricLog(run.path, settings.tracker) as log:
        if settings.executed_plans:
            settings = replace(
                settings,
                folders={**settings.folders, EXECUTION: learned_critic(settings, datasets, run.path, device, log)},
            )
        reward, weights = open_rewards(settings, device)
        task, held_out = alignment_tasks(settings, datasets, reward, weights, device)
        add_low_rank(task.dynamics, task.dynamics.blocks, settings.lora, seed=settings.seed)
        share = trained_share(task.dynamics)
        method = make_method(settings.method, task, settings.methods)  # remembers the weights as they are now
        before = measure(held_out, settings.videos, pictures=settings.filmstrips)
        history = align(task, method, folder=run.path / "checkpoints", log=log)
        merge_low_rank(task.dynamics)
        after = measure(held_out, settings.videos, pictures=settings.filmstrips)
        parents, learned = lineage(dict(zip(settings.data, datasets, strict=True)), [settings.start])
        judged_by, known = rewards_lineage(settings.folders.values())
        task.model.save(run.path / WORLD_MODEL, parents=parents + judged_by, learned=learned | known)
        metrics = {
            "method": settings.method,
            "mixing": settings.mixing,
            "weights": dict(zip(reward.names, weights, strict=True)),
            "trained_share": share,
            "starts": len(task.starts),
            "held_out_starts": len(held_out.starts),
            "terms": compare(before, after, seed=settings.seed),
            "motion_kept": motion_ratio_of(before, after, seed=settings.seed),
            "evaluations": sum(value for row in history for key, value in row.items() if key.endswith("evaluations")),
            "hash": artefact_hash(run.path / WORLD_MODEL),
            "executed_plans": read_json(run.path / EXECUTION / WORTH) if settings.executed_plans else None,
        }
        run.write_result(metrics, seed=settings.seed, device=str(device))
        publish(run, report_page(metrics, history, before, after, seed=settings.seed, device=str(device)))
        console().print(f"{sentence(metrics)}\nmodel in {run.path / WORLD_MODEL}, report in {run.path / 'report.html'}")
    return metrics


def require_room(settings: AlignWorldModelSettings, side: int) -> None:
    """Refuse numbers whose videos, held at once, exceed the memory; SettingError with their least size."""
    config, group = settings.alignment, settings.alignment.group_size
    if settings.method == "sol_rl":
        group = max(group, settings.methods.sol_rl.explored)
    asked = f"alignment.prompts={config.prompts}, {group} videos of each, alignment.chunks={config.chunks}"
    require_frames_memory(config.prompts * group * config.chunks, side, asked)
    require_memory(VIDEO_BYTES * settings.videos, f"videos={settings.videos} of each start")
    require_memory(VIDEO_BYTES * settings.executed_plans, f"executed_plans={settings.executed_plans} of each task")


def learned_critic(
    settings: AlignWorldModelSettings, datasets: list[EpisodeDataset], run: Path, device: torch.device, log: MetricLog
) -> str:
    """Execute plans of every task in the data and learn from them, unless this run has; return the reward's folder.

    Raises ArtefactError (there is no inverse dynamics in ``folders.execution``, or an earlier version has executed plans
    in this run). Raises SettingError (it does not read the whole command of a robot that takes targets, the data is
    of several domains, or all plans came to the same).
    """
    place = run / EXECUTION
    if not (place / WORTH).exists():
        given = settings.folders.get(EXECUTION)
        if not given:
            raise SettingError(
                "folders.execution: with executed_plans it names the run directory of train-idm target=[command]"
            )
        folder, domain = Path(given) / IDM_FOLDER, only_domain(datasets)
        reader, model = idm_reward(str(folder), [], device), _model(settings, datasets[0], device)
        check_targets(reader.decoder.columns, model.embodiment.actions)
        reader.decoder.save(place / IDM_FOLDER, parents=[parent(folder)], learned=Learned.read(folder))
        tasks = sorted({task for dataset in datasets for task in dataset.tasks()})
        watched = watched_rewards(settings, reader, device)
        planning = Planning(model, reader.decoder, watched, mean_of_terms, settings.seed)
        chunks = dict.fromkeys(tasks, settings.alignment.chunks)
        tried = collect_plans(planning, chunks, settings.executed_plans, place=place, domain=domain)
        parents, learned = lineage({}, [settings.start])
        learned |= Learned.read(folder) | plan_states(tasks, settings.executed_plans, settings.seed)
        made_from = {"parents": [*parents, parent(place / IDM_FOLDER)], "learned": learned}
        learn_critic(tried, settings.execution, COLLECTION_KEPT, place, seed=settings.seed, log=log, **made_from)
    if "terms_pooled" not in read_json(place / WORTH):  # said before the alignment, not after it
        raise ArtefactError(
            f"{place}: an earlier version measured this critic over all tasks together; give a new run_dir"
        )
    return str(place)


def watched_rewards(settings: RewardChoice, reader: DecodedReward, device: torch.device) -> VideoReward:
    """What else is asked of plans that are executed, so that it is known what each reward knows: all of the run's other rewards."""
    others = {name: terms for name, terms in chosen_terms(settings.rewards, []).items() if name != EXECUTION}
    if not others:
        return reader
    return RewardTerms([open_reward(name, terms, settings.folders, device) for name, terms in others.items()])


def alignment_tasks(
    settings: AlignWorldModelSettings,
    datasets: list[EpisodeDataset],
    reward: RewardTerms,
    weights: list[float],
    device: torch.device,
) -> tuple[AlignmentTask, AlignmentTask]:
    """Make the task to train on, and the same one on the starts kept apart; they share the model."""
    model = _model(settings, datasets[0], device)
    episodes = [episode for dataset in datasets for episode in dataset.load()]
    training, held_out = split_starts(episodes, settings, model)
    frame_s = model.frame_stride / datasets[0].fps
    mixing, scaled = partial(REWARD_MIXES.get(settings.mixing), weights=weights), settings.mixing == "gdpo"
    task = AlignmentTask(model, training, reward, mixing, frame_s, settings.alignment, settings.seed, scaled)
    return task, replace(task, starts=held_out)


def _model(settings: AlignWorldModelSettings, dataset: EpisodeDataset, device: torch.device) -> VideoWorldModel:
    model = starting_world_model(settings.start, None, dataset.embodiment, seed=settings.seed, device=device)
    if not isinstance(model, VideoWorldModel):
        raise SettingError(
            f"start: {settings.start} is a Wan world model; alignment trains worldrl's own flow transformer"
        )
    require_one_view(model, "align-world-model")
    if settings.conditioning == "instruction" and not model.config.dynamics.planning:
        raise SettingError(
            f"start: the world model in {settings.start} does not plan; train one with model.dynamics.planning=true "
            "training.action_dropout=0.5, or give conditioning=actions"
        )
    # Sampling and training must compute alike: their probability ratio is held within 1e-4 of 1.
    model.compute_dtype = torch.float32
    return model.eval()


def split_starts(
    episodes: list[Episode], settings: AlignWorldModelSettings, model: VideoWorldModel
) -> tuple[Starts, Starts]:
    """Return the starts to train on and those kept apart.

    Raises SettingError (the share leaves one of them without a motion).
    """
    motions = shuffled_motions(episodes, seed=settings.seed, name="held-out")
    count = round(settings.held_out * len(motions))
    if not 0 < count < len(motions):
        raise SettingError(
            f"held_out={settings.held_out} of {len(motions)} motions leaves none to measure or none to train on; record "
            "more, or change the share"
        )
    training, held_out = (
        [episodes[i] for motion in part for i in motion] for part in (motions[count:], motions[:count])
    )
    return starts_of(training, settings, model), starts_of(held_out, settings, model)


def starts_of(episodes: list[Episode], settings: AlignWorldModelSettings, model: VideoWorldModel) -> Starts:
    """Make the starts at the episodes' first frames, with their actions where the model is given these."""
    records = [
        record_at(e, 0, memory_frames=model.memory_frames, frame_stride=model.frame_stride, source=f"start {n}")
        for n, e in enumerate(episodes)
    ]
    if settings.conditioning == "instruction":
        return Starts(records)
    steps = settings.alignment.chunks * model.chunk_length
    return Starts(records, torch.from_numpy(np.stack([padded_actions(episode, steps) for episode in episodes])))


def motion_ratio_of(before: Measured, after: Measured, *, seed: int) -> MotionRatio:
    """Measure whether the videos still move, start by start: the videos of one start share its image, so their mean counts once."""
    was, now = (measured.terms[MOTION].mean(axis=1).tolist() for measured in (before, after))
    return motion_ratio(was, now, generator=numpy_stream(seed, "bootstrap", "motion kept"))


def compare(before: Measured, after: Measured, *, seed: int) -> dict[str, Any]:
    """Give every term and the motion before, after and their paired difference, with intervals over starts."""
    found: dict[str, Any] = {}
    for name in before.terms:
        was, now = (measured.terms[name].mean(axis=1) for measured in (before, after))
        found[name] = {
            side: bootstrap(values, np.mean, generator=numpy_stream(seed, "bootstrap", name))
            for side, values in (("before", was), ("after", now), ("gain", now - was))
        }
    return found
