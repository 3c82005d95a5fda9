"""``worldrl collect``: records episodes in the simulator as a LeRobotDataset v3, and continues where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.table import Table

from worldrl.core.device import resolve_device
from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.rng import stream_seed
from worldrl.core.statistics.intervals import wilson
from worldrl.core.storage.capacity import require_disk
from worldrl.core.storage.log import console
from worldrl.core.storage.run import RunDirectory
from worldrl.data.lerobot.writer import least_bytes
from worldrl.evaluation.policy.protocol import DOMAINS, instruction_of
from worldrl.jobs.data.collect_suite import check_settings, collecting_policy, record_suite
from worldrl.policies.exploration import Exploration
from worldrl.policies.remote.address import refuse_temperature
from worldrl.recipes.evaluation_output import say_assets
from worldrl.recipes.planning import planning_metrics, say_planning
from worldrl.recipes.run import (
    DATASET,
    ENGINE,
    WITH_RAY,
    RayOptions,
    check_engine,
    choose_tasks,
    engine_of,
    open_run,
    rate_interval,
)
from worldrl.recipes.stages import imagined_plan
from worldrl.recipes.world_model.start import weights_folder
from worldrl.rollout.agents.actors import AnyActor, ExpertActor, WanderActor
from worldrl.rollout.agents.policy_folder import acting_policy, policy_facts, policy_place
from worldrl.rollout.planning.config import NONE, PLANNER, PlanningConfig
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.embedded import WRISTS, embedded_embodiment, main_camera
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import IMAGE_SIZES, PLANNED, EnvOptions, EpisodeSpec, PlannedChunks, require_styles
from worldrl.rollout.suites.names import CLIP_ACTIONS, EMBEDDED, SHADOWS, SUITE, SUITE_PYTHON, require_suite_name
from worldrl.settings import fraction, non_negative, one_of, positive, setting
from worldrl.world_models.loading import open_world_model

SOURCES = tuple(f"{source}_episodes" for source in ("expert", "noisy", "blind", "wander", "policy", "imagined"))
"""Settings that say how many episodes of each task somebody records."""


@dataclass
class CollectSettings:
    """What is recorded: for each task, episodes of up to six sources."""

    run_dir: str = setting("runs/collect", "where everything is written; the dataset goes to run_dir/dataset")
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "where a policy runs: cpu, cuda, cuda:N or auto")
    workers: int = setting(2, "simulator processes; 0 runs in this process")
    envs_per_worker: int = setting(4, "environments per process, stepped in lock-step")
    timeout_s: float = setting(120.0, "longest silence of a worker before it is restarted (s)")
    engine: str = setting("local", ENGINE)
    ray: RayOptions = field(default_factory=RayOptions, metadata={"only_with": WITH_RAY})
    suite: str = setting(EMBEDDED, SUITE)
    python: str = setting("", SUITE_PYTHON)
    first_index: int = setting(
        0,
        "external suites: first initial state; leave those out that a benchmark will measure (LIBERO: 50 leaves out all)",
    )
    demonstrations: str | None = setting(
        None,
        "LIBERO: folder with its own HDF5 demonstrations; all are read; with expert_episodes=0 nothing else is recorded",
    )
    clip_actions: bool = setting(False, CLIP_ACTIONS)
    shadows: bool = setting(True, SHADOWS)
    tasks: list[str] = setting([], "names of tasks; empty takes all tasks of kind")
    kind: str | None = setting(None, "object, spatial, goal or long; bimanual for two arms; null for all of one arm")
    expert_episodes: int = setting(20, "per task, by the scripted expert")
    noisy_episodes: int = setting(0, "per task, by the expert with noise and goal_offset: varied and failed data")
    blind_episodes: int = setting(
        0,
        "per task, by the noisy expert that tries each skill once and never repeats a failed one: near misses",
    )
    wander_episodes: int = setting(0, "per task, by a random explorer")
    policy_episodes: int = setting(0, "per task, by the policy in folder policy")
    imagined_episodes: int = setting(
        0, "per task, actions of the policy in imagined rollouts of world_model, executed in the simulator"
    )
    imagined_candidates: int = setting(
        1, "imagined rollouts from each start of imagined_episodes; the one most likely to succeed is executed"
    )
    policy: str | None = setting(
        None, "folder or address (ws://HOST:PORT) of the policy of policy_episodes and imagined_episodes"
    )
    world_model: str | None = setting(None, "world model of imagined_episodes: a folder, or bundled")
    temperature: float | None = setting(None, "the policy's sampling temperature; null is greedy")
    noise_correlation: float = setting(0.0, "share of the policy's randomness that stays the same over an episode")
    planner: str = setting(NONE, f"of policy_episodes: {PLANNER}")
    planning: PlanningConfig = field(default_factory=PlanningConfig, metadata={"only_with": f"planner!={NONE}"})
    monitor: str | None = setting(None, "folder of the monitor of intervene")
    intervene: str = setting(
        "none", "none, or expert: at an alarm of monitor in policy_episodes it takes over from the last familiar state"
    )
    false_alarms: float | None = setting(
        None, "fits run_dir/monitor to these episodes; it alarms in at most this share of the policy's successes"
    )
    noise: float = setting(0.3, "action noise of the noisy expert, as a fraction of the action range")
    goal_offset: float = setting(0.02, "error of the noisy expert's targets, standard deviation (m)")
    hold_steps: int = setting(8, "steps recorded after the first success")
    image_size: int = setting(64, "pixels per side")
    wrist: bool = setting(False, "also record the wrist cameras")
    domain: str = setting(
        "clean", "bimanual tasks: clean, or randomised in visual style and table height; then no styles"
    )
    styles: list[str] = setting(["default"], "visual styles of the scene; each episode gets one of them")
    instruction_mode: str = setting("canonical", "kind of instructions: canonical, paraphrase or held_out")

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in (*SOURCES, "workers", "first_index", "noise", "goal_offset", "hold_steps"):
            non_negative(name, getattr(self, name))
        for name in ("envs_per_worker", "timeout_s", "image_size", "imagined_candidates"):
            positive(name, getattr(self, name))
        if self.temperature is not None:
            positive("temperature", self.temperature)
        fraction("noise_correlation", self.noise_correlation)
        one_of("instruction_mode", self.instruction_mode, ("canonical", "paraphrase", "held_out"))
        self._check_imagined()
        if self.planner != NONE and not self.policy_episodes:
            raise SettingError(
                "planner: plans for policy_episodes; give policy_episodes=N with policy, or planner=none"
            )
        one_of("domain", self.domain, DOMAINS)
        one_of("intervene", self.intervene, ("none", "expert"))
        require_suite_name(self.suite)
        if monitor := monitor_recipe(self):
            monitor.check_collected(self)
        check_engine(self)
        if self.suite != EMBEDDED:
            check_settings(self)
        elif self.demonstrations is not None:
            raise SettingError("demonstrations: LIBERO's files are read for one of its suites; give suite=libero_...")
        if self.clip_actions and self.demonstrations is None:
            raise SettingError("clip_actions: is for LIBERO's own files; give demonstrations=FOLDER, or leave it out")
        require_styles(self.styles, field="styles")
        low, high = IMAGE_SIZES
        if self.suite == EMBEDDED and not low <= self.image_size <= high:
            raise SettingError(
                f"image_size: must be in {low}..{high} pixels, got {self.image_size}; give image_size=64"
            )

    def _check_imagined(self) -> None:
        """Refuse halves of what goes together."""
        if (self.policy_episodes + self.imagined_episodes > 0) != (self.policy is not None):
            raise SettingError("policy goes with policy_episodes or imagined_episodes: give both, or neither")
        if (self.imagined_episodes > 0) != (self.world_model is not None):
            raise SettingError("world_model and imagined_episodes go together: give both, or neither")
        if self.imagined_candidates != 1 and not self.imagined_episodes:
            raise SettingError(
                f"imagined_candidates={self.imagined_candidates} has no effect without imagined_episodes; give both, or neither"
            )


def main(settings: CollectSettings) -> dict[str, Any]:
    """Record what is missing, write ``result.json`` and print the closing table.

    Returns the metrics: per task and source, success as k of n, and the number of frames.
    """
    device = str(resolve_device(settings.device))
    record = record_embedded if settings.suite == EMBEDDED else record_suite
    with open_run("collect", settings) as run:
        rows, facts = record(settings, run, device)
        metrics = {**summarise(rows), **planned(settings, rows), **facts}
        run.write_result(metrics, seed=settings.seed, device=device)
        show(metrics, run.path / DATASET)
        say_planning(metrics)
        if monitor := monitor_recipe(settings):
            monitor.say_monitored(metrics)
        say_assets(metrics)
    return metrics


def record_embedded(
    settings: CollectSettings, run: RunDirectory, device: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Record the missing episodes of the embedded suite; arguments and return value as of ``record_suite``."""
    tasks = choose_tasks(settings.tasks, settings.kind)
    options = env_options(settings, tasks)
    monitor = monitor_recipe(settings)
    if monitor:
        monitor.check_fit(settings, tasks)
    require_room(settings, len(tasks), run.path / DATASET)
    plans = [
        *make_plans(settings, tasks, device),
        *imagined_plans(settings, tasks, run.path / "imagined_rollouts.npz", device),
    ]
    limits = settings.workers, settings.envs_per_worker, settings.timeout_s
    player = EmbeddedPlayer(options, *limits, engine=engine_of(settings))
    rows = collect_dataset(run.path / DATASET, plans, player, hold_steps=settings.hold_steps)
    return rows, monitor.monitored(settings, rows, run.path, device) if monitor else {}


def monitor_recipe(settings: CollectSettings) -> ModuleType | None:
    """Return the module of monitors where one is fitted or asked for its alarms."""
    if (settings.monitor, settings.intervene, settings.false_alarms) == (None, "none", None):
        return None
    from worldrl.recipes import monitor

    return monitor


def require_room(settings: CollectSettings, tasks: int, folder: Path) -> None:
    """Refuse more episodes than the disk has room for, before a new dataset is begun.

    Raises SettingError (naming how much they take).
    """
    if folder.exists():
        return
    given = {name: count for name in SOURCES if (count := getattr(settings, name))}
    need = least_bytes(tasks * sum(given.values()), settings.hold_steps + 1, 1, settings.image_size)
    asked = ", ".join(f"{name}={count}" for name, count in given.items())
    require_disk(folder, need, f"{asked} for each of {tasks} tasks")


def env_options(settings: CollectSettings, tasks: Sequence[str]) -> EnvOptions:
    """How the environments of these tasks are made.

    Raises SettingError: single-arm and bimanual tasks together, a policy of another robot, or a randomised domain that the
    settings or tasks do not allow.
    """
    robot = embedded_embodiment(tasks)
    two_armed = isinstance(robot, JointEmbodiment)
    if settings.domain != "clean" and (not two_armed or settings.styles != ["default"]):
        raise SettingError(
            "domain: randomised is of bimanual tasks and draws its own visual styles; leave styles as it is"
        )
    if settings.policy is not None:
        facts, size = policy_facts(policy_place(settings.policy)), settings.image_size
        own = facts.actions
        if facts.cameras and facts.picture != (size, size):
            raise SettingError(
                f"image_size: the policy in {settings.policy} observes images of {facts.picture} pixels, image_size is {size}; "
                "give the policy's"
            )
        if own != robot.actions:
            raise SettingError(
                f"policy: the one in {settings.policy} acts with {', '.join(own.names)}, the robot of these tasks with "
                f"{', '.join(robot.actions.names)}; give a policy of this robot"
            )
    cameras = (main_camera(robot), *(WRISTS[two_armed] if settings.wrist else ()))
    return EnvOptions(image_size=settings.image_size, cameras=cameras, domain=settings.domain, actions=robot.actions)


def make_plans(settings: CollectSettings, tasks: Sequence[str], device: str) -> list[CollectPlan[AnyActor]]:
    """Name every episode of every source."""
    noisy = ExpertActor(noise=settings.noise, goal_offset=settings.goal_offset)
    sources: list[tuple[str, AnyActor, int]] = [
        ("expert", ExpertActor(), settings.expert_episodes),
        ("noisy_expert", noisy, settings.noisy_episodes),
        ("blind_expert", replace(noisy, blind=True), settings.blind_episodes),
        ("wander", WanderActor(), settings.wander_episodes),
    ]
    if settings.policy is not None:
        policy = collecting_policy(settings, device)
        sources.append(("policy", policy, settings.policy_episodes))
    return [CollectPlan(actor, name_episodes(settings, tasks, source, count)) for source, actor, count in sources]


def imagined_plans(
    settings: CollectSettings, tasks: Sequence[str], file: Path, device: str
) -> list[CollectPlan[AnyActor]]:
    """Imagine the rollouts, unless an earlier start has, and plan to execute them."""
    if settings.policy is None or settings.world_model is None:
        return []
    model = open_world_model(weights_folder(settings.world_model), device)
    refuse_temperature(settings.policy, settings.temperature)
    plan = imagined_plan(
        file,
        model,
        acting_policy(policy_place(settings.policy), device),
        tasks,
        settings.imagined_episodes,
        seed=stream_seed(settings.seed, "collect", "dream") % 2**31,
        image_size=settings.image_size,
        exploration=Exploration(settings.temperature or 1.0, settings.noise_correlation),
        candidates=settings.imagined_candidates,
    )
    return [plan]


def name_episodes(settings: CollectSettings, tasks: Sequence[str], source: str, count: int) -> list[EpisodeSpec]:
    """Specs of one source, ``count`` per task.

    Each source has a seed of its own, so that no two sources share an initial state. None shares one with an evaluation,
    which uses its seed as it is given.
    """
    # Below 2**31: simulators and file formats differ in how large a seed they keep.
    seed = stream_seed(settings.seed, "collect", source) % 2**31
    return [
        EpisodeSpec(
            task=task,
            index=index,
            seed=seed,
            instruction=instruction_of(settings.instruction_mode, task, index, seed),
            style=settings.styles[stream_seed(seed, "style", task, index) % len(settings.styles)],
            source=source,
        )
        for task in tasks
        for index in range(count)
    ]


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count a dataset's episodes by task and source."""
    groups: dict[str, dict[str, Any]] = {}
    for row in rows:
        groups.setdefault(row["task"], {}).setdefault(row["source"], []).append(row)
    return {
        "episodes": len(rows),
        "frames": sum(row["length"] + 1 for row in rows),
        "restarted_episodes": sum(row["restarted"] for row in rows),
        "tasks": {
            task: {
                source: wilson(sum(row["success"] for row in episodes), len(episodes))
                for source, episodes in sources.items()
            }
            for task, sources in groups.items()
        },
    }


def planned(settings: CollectSettings, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the result says of the planner; the time of recorded episodes is not kept."""
    counts = [PlannedChunks(**row[PLANNED], seconds=None) for row in rows if PLANNED in row]
    return planning_metrics(settings.planner, counts)


def show(metrics: Mapping[str, Any], dataset: Path) -> None:
    """Print the closing table."""
    table = Table(title=f"{metrics['episodes']} episodes, {metrics['frames']} frames in {dataset}")
    for heading in ("task", "source", "success", "95 % interval"):
        table.add_column(heading, justify="left" if heading in ("task", "source") else "right")
    for task, sources in metrics["tasks"].items():
        for source, rate in sources.items():
            table.add_row(task, source, f"{rate['k']}/{rate['n']}", rate_interval(rate))
    console().print(table)
