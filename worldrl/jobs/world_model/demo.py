"""``worldrl demo``: minutes from a fresh installation to a policy that plans in a world model, with films and a page.

The policy's own episodes are filmed beside what the world model imagines for the same actions. Then the policy is measured
in MuJoCo alone and with planning, on the same initial states. All of it composes what `imagine`, `evaluate` and
`compare` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldrl.core.device import resolve_device
from worldrl.core.observation import images_among
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.log import console
from worldrl.core.storage.run import RunDirectory
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.policy.compare import Comparison, compare
from worldrl.evaluation.policy.evaluate import evaluate_policy, policy_actor
from worldrl.evaluation.policy.protocol import EvalProtocol, embedded_protocol
from worldrl.evaluation.policy.trained_on import examine
from worldrl.evaluation.report.store import publish, save_videos
from worldrl.evaluation.world_model.rollout_error import closed_loop_psnr
from worldrl.jobs.world_model.demo_report import report_page, sentence, small
from worldrl.paths import weights_dir
from worldrl.recipes.planning import planner_of, planning_metrics
from worldrl.recipes.run import choose_tasks, claim_inputs, open_run
from worldrl.recipes.sample_episodes import HOLD_STEPS, KIND
from worldrl.recipes.world_model.replayed_films import Replayed, replayed
from worldrl.recipes.world_model.start import BUNDLED, weights_folder
from worldrl.rollout.agents.policy_folder import PolicyFacts, policy_facts
from worldrl.rollout.planning.config import PLANNERS, Planner, PlanningConfig
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.embedded import embedded_cameras
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.settings import one_of, setting
from worldrl.world_models.loading import open_world_model

SIDES = {"before": "alone", "after": "planned"}
"""What the two sides of the comparison are."""


@dataclass
class DemoSettings:
    """Which policy, and how many episodes."""

    run_dir: str = setting("runs/demo", "where films, results and the page are written")
    seed: int = setting(0, "of the initial states, of imagination and of the planner")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    policy: str = setting(BUNDLED, "bundled, or the folder of a policy of the Pick tasks")
    episodes: int = setting(5, "initial states of each of the three Pick tasks; more narrow the intervals")
    workers: int = setting(2, "simulator processes; 0 runs in this process")
    envs_per_worker: int = setting(4, "environments per process, and the largest batch of a decision")
    timeout_s: float = setting(600.0, "longest silence of a worker before it is restarted (s)")
    planner: str = setting("best_of_n", f"what plans: {', '.join(PLANNERS)}")
    planning: PlanningConfig = field(default_factory=PlanningConfig)

    def __post_init__(self) -> None:
        """Check the planner."""
        one_of("planner", self.planner, PLANNERS)

    @property
    def policy_folder(self) -> Path:
        """Folder of the policy."""
        return weights_dir() / "policy" if self.policy == BUNDLED else Path(self.policy)


def main(settings: DemoSettings) -> dict[str, Any]:
    """Film, measure, compare, and write the page; a stopped run continues.

    Returns the metrics: those of ``compare`` (``before`` is the policy alone, ``after`` with planning), ``planning``, and
    ``films`` with their image error. Raises SettingError (policy and world model do not fit) and ArtefactError (a folder
    is incomplete).
    """
    device = str(resolve_device(settings.device))
    planner = planner_of(settings, str(settings.policy_folder))
    facts = policy_facts(settings.policy_folder)
    with open_run("demo", settings) as run:
        protocol = protocol_of(settings)
        trained = examine(protocol, facts.trained_on, refuse=False)
        for warning in trained["warnings"]:
            console().print(f"warning: {warning}", markup=False, soft_wrap=True)
        claim_inputs(run, inputs_of(settings, facts))
        films = film(run, settings, protocol, device)
        save_videos(films.videos(), run.path)
        console().print(f"films: {run.path / 'videos'}", markup=False, soft_wrap=True)
        compared = measure(run, settings, protocol, planner, device)
        planned = planning_metrics(settings.planner, [outcome.planned for outcome in compared.b.outcomes])
        metrics = {**compared.metrics(), "sides": SIDES, **planned, **trained, "films": closed_loop_psnr(films.result)}
        run.write_result(metrics, seed=settings.seed, device=device, protocol_hash=protocol.hash)
        page = publish(run, report_page(metrics, films, seed=settings.seed))
        console().print(f"{' '.join([sentence(metrics), *small(metrics)])}\nreport: {page}", markup=False)
    return metrics


def inputs_of(settings: DemoSettings, facts: PolicyFacts) -> dict[str, Any]:
    """Say what exactly is shown: the policy and the world model."""
    world_model = settings.planning.world_model
    return {
        "policy": {"path": settings.policy, "hash": facts.hash},
        "planning.world_model": {"path": world_model, "hash": artefact_hash(weights_folder(world_model))},
    }


def protocol_of(settings: DemoSettings) -> EvalProtocol:
    """Say what is measured: the Pick tasks, with the image size and chunk length of the policy."""
    facts, tasks = policy_facts(settings.policy_folder), choose_tasks([], KIND)
    return embedded_protocol(
        tasks,
        episodes_per_task=settings.episodes,
        seed=settings.seed,
        chunk_length=facts.chunk_length,
        image_size=facts.image_size,
        cameras=embedded_cameras(tasks, images_among(facts.more)),
    )


def film(run: RunDirectory, settings: DemoSettings, protocol: EvalProtocol, device: str) -> Replayed:
    """Record the policy's first episode of each task, and imagine its actions."""
    stage = run.stage("01-films")
    specs = [spec for spec in protocol.specs() if spec.index == protocol.first_index]
    actor = policy_actor(settings.policy_folder, protocol, device)
    player = EmbeddedPlayer(protocol.env_options, workers=0)
    collect_dataset(stage.folder / "dataset", [CollectPlan(actor, specs)], player, hold_steps=HOLD_STEPS)
    dataset = EpisodeDataset.open(stage.folder / "dataset")
    episodes = [dataset[number] for number in range(len(dataset))]
    model = open_world_model(weights_folder(settings.planning.world_model), resolve_device(settings.device)).eval()
    films = replayed(model, episodes, fps=dataset.fps, seed=settings.seed)
    if not stage.finished:
        stage.finish({"episodes": len(episodes)})
    return films


def measure(
    run: RunDirectory, settings: DemoSettings, protocol: EvalProtocol, planner: Planner | None, device: str
) -> Comparison:
    """Measure the policy alone and with planning, on the same initial states."""
    player = EmbeddedPlayer(protocol.env_options, settings.workers, settings.envs_per_worker, settings.timeout_s)
    found = []
    ways: Mapping[str, Planner | None] = {"02-alone": None, "03-planned": planner}
    for name, way in ways.items():
        stage = run.stage(name)
        result = evaluate_policy(player, settings.policy_folder, protocol, device=device, planner=way, out=stage.folder)
        if not stage.finished:
            stage.finish(result.metrics())
        found.append(result)
    return compare(*found)
