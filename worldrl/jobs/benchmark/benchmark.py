"""``worldrl benchmark``: a policy, or a suite's scripted expert, on a benchmark suite, without a screen.

The same command serves every suite; an interrupted run continues where it stopped. With ``against`` it ends as soon
as the comparison is decided; with ``plan.diff`` it says how many episodes a comparison needs.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.observation import images_among
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.sequential import Boundary
from worldrl.core.statistics.sequential_step import StepRule
from worldrl.core.storage.jsonfile import digest, read_json
from worldrl.core.storage.log import console
from worldrl.core.storage.run import RESULT, RunDirectory
from worldrl.evaluation.policy.evaluate import evaluate, fitting_facts, with_planner
from worldrl.evaluation.policy.protocol import DOMAINS, EvalProtocol, embedded_protocol, require_same, suite_protocol
from worldrl.evaluation.policy.result import EvalResult, mean_score
from worldrl.evaluation.policy.sequential_comparison import (
    RULES,
    ComparisonDecided,
    SequentialComparison,
    sequential_against,
)
from worldrl.evaluation.policy.trained_on import examine
from worldrl.evaluation.report.store import publish
from worldrl.jobs.benchmark.films import (
    actor_of,
    cameras_of,
    film_failures,
    identity_of,
    open_external,
    planner_for,
    recycle_after_of,
)
from worldrl.jobs.benchmark.plan import BenchmarkPlan, advise
from worldrl.jobs.benchmark.report import EMBEDDED, EXPERT, RECORDINGS, Measured, report_page
from worldrl.jobs.benchmark.tables import protocol_line, write_tables
from worldrl.recipes.evaluation_output import DOMAIN, HOLD_STEPS, say_assets, show, video_writer
from worldrl.recipes.planning import planning_metrics, say_planning
from worldrl.recipes.run import (
    ENGINE,
    WITH_RAY,
    RayOptions,
    check_engine,
    choose_tasks,
    claim_inputs,
    engine_of,
    measured_inputs,
    open_run,
)
from worldrl.recipes.suites.opening import OpenSuite
from worldrl.rollout.agents.policy_folder import is_agent, policy_facts, policy_place
from worldrl.rollout.agents.vector_agent import require_vector_fits
from worldrl.rollout.chunk_timing import check_timing
from worldrl.rollout.planning.config import NONE, PLANNER, Planner, PlanningConfig
from worldrl.rollout.real.embedded import embedded_cameras
from worldrl.rollout.real.episodes import EpisodeTiming
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.suites.names import SHADOWS, SUITE, SUITE_PYTHON, require_suite_name
from worldrl.rollout.suites.registry import find_suite, require_suite_fits
from worldrl.rollout.suites.suite import Suite, drawn_size, require_expert
from worldrl.settings import non_negative, one_of, positive, setting

IMAGES_NOTE = "images_note"  # Metric of a run whose page is drawn


@dataclass
class BenchmarkSettings:
    """Which suite, who acts, and how much of it."""

    policy: str = setting("", "folder or address (ws://HOST:PORT) of a policy, or expert for the suite's scripted one")
    suite: str = setting(EMBEDDED, SUITE)
    python: str = setting("", SUITE_PYTHON)
    run_dir: str = setting("runs/benchmark", "where everything is written")
    seed: int = setting(0, "of sampling, and of the embedded suite's initial states")
    device: str = setting("cpu", "where the policy runs: cpu, cuda, cuda:N or auto")
    episodes: int = setting(10, "initial states of each task; LIBERO stores 50")
    first_index: int = setting(0, "number of the first initial state")
    refuse_training_states: bool = setting(False, "refuse initial states that the policy was trained on")
    tasks: list[str] = setting([], "names of tasks; empty takes all of the suite")
    workers: int = setting(2, "simulator processes; 0 runs the embedded suite in this process")
    envs: int = setting(4, "environments in all, and the largest batch of a decision")
    replan: int | None = setting(None, "actions executed of each chunk; null for all")
    latency: int = setting(0, "control steps that a decision takes, during which the robot executes the previous chunk")
    hold_steps: int = setting(0, HOLD_STEPS)
    temperature: float | None = setting(None, "sampling temperature; null is greedy")
    domain: str = setting("clean", f"embedded suite, {DOMAIN}")
    shadows: bool = setting(True, SHADOWS)
    image_size: int = setting(256, "external suites: pixels of the expert's videos; a policy brings its own")
    assets: str = setting("", "LIBERO: folder of its assets; empty takes the folder given to setup")
    assets_note: str = setting("", "LIBERO: note on its assets for the result, added to the note given to setup")
    timeout_s: float = setting(300.0, "longest silence of a worker before it is replaced (s)")
    engine: str = setting("local", ENGINE)
    ray: RayOptions = field(default_factory=RayOptions, metadata={"only_with": WITH_RAY})
    recycle_after: int | None = setting(
        None, "episodes after which a worker is replaced; null for 50 of an external suite, 250 of the embedded one"
    )
    restarts: int = setting(2, "restarts of a worker per episode")
    videos: int = setting(0, "episodes per task filmed, in recordings/ and on the page")
    failures: int = setting(3, "failed episodes that are repeated for the report's images")
    against: str = setting("", "finished benchmark to compare with: ends as soon as the comparison is decided")
    stopping: str = setting(
        Boundary.name, f"when a comparison with against= ends: {' or '.join(RULES)} (other initial states)"
    )
    others: list[str] = setting([], "finished benchmarks of other training seeds: one score, states that always fail")
    planner: str = setting(NONE, PLANNER)
    planning: PlanningConfig = field(default_factory=PlanningConfig, metadata={"only_with": f"planner!={NONE}"})
    plan: BenchmarkPlan = field(default_factory=BenchmarkPlan)

    def __post_init__(self) -> None:
        """Check the names and the ranges."""
        require_suite_name(self.suite)
        check_engine(self)
        one_of("domain", self.domain, DOMAINS)
        if self.domain != "clean" and self.suite != EMBEDDED:
            raise SettingError(f"domain: is of the embedded suite's bimanual tasks; leave it out with {self.suite}")
        one_of("stopping", self.stopping, tuple(RULES))
        for name in ("first_index", "workers", "restarts", "videos", "failures", "latency", "hold_steps"):
            non_negative(name, getattr(self, name))
        for name in ("episodes", "envs", "timeout_s", "image_size"):
            positive(name, getattr(self, name))
        if self.recycle_after is not None:
            positive("recycle_after", self.recycle_after)


def main(settings: BenchmarkSettings) -> dict[str, Any]:
    """Run the missing episodes, write the results as JSON, CSV, Markdown and a page, and print the table.

    Returns the metrics of :meth:`~worldrl.evaluation.policy.result.EvalResult.metrics`; with ``plan.diff`` the
    advice. A finished run is read: no simulator starts. Raises SettingError (neither a policy nor ``plan.diff`` is
    given). Raises ProtocolError (``against`` or ``others`` were measured under another protocol).
    """
    if settings.plan.diff is not None:
        return advise(settings)
    if not settings.policy:
        raise SettingError(
            "benchmark needs policy; give policy=FOLDER, which `worldrl train-policy` makes, policy=expert, or plan.diff=0.05 for advice"
        )
    planner = planner_for(settings)
    with open_run("benchmark", settings) as run:
        claim_inputs(run, inputs_of(settings, planner))
        if not finished(run):
            produce(settings, run, str(resolve_device(settings.device)), planner)
        stored = read_json(run.path / RESULT)
    say(settings, run, stored)
    return stored["metrics"]


def inputs_of(settings: BenchmarkSettings, planner: Planner | None) -> dict[str, Any]:
    """Say what exactly is measured, and beside which earlier results."""
    inputs = measured_inputs(settings.policy, identity_of(settings), settings.suite, planner)
    for folder in filter(None, [settings.against, *settings.others]):
        inputs[folder] = {"path": folder, "hash": digest(EvalResult.load(Path(folder)).metrics())}
    return inputs


def finished(run: RunDirectory) -> bool:
    """Whether nothing is left to measure or to draw."""
    if not (run.path / RESULT).exists():
        return False
    metrics = read_json(run.path / RESULT)["metrics"]
    return IMAGES_NOTE in metrics or "score" not in metrics  # a decided comparison draws nothing


def produce(settings: BenchmarkSettings, run: RunDirectory, device: str, planner: Planner | None) -> None:
    """Run the missing episodes, and write tables, page and ``result.json``."""
    try:
        result, account, extra = measure(settings, run, device, planner)
    except ComparisonDecided as over:
        return finish_sequential_comparison(settings, run, over, device)
    others = [EvalResult.load(Path(folder)) for folder in settings.others]
    score = mean_score([result, *others], generator=numpy_stream(settings.seed, "benchmark", "score"))
    suite = settings.suite if settings.suite == EMBEDDED else result.protocol.suite
    metrics = {"suite": suite, **result.metrics(), "score": score, "spent": asdict(account), **extra}
    provenance: dict[str, Any] = {"seed": settings.seed, "device": device, "protocol_hash": result.protocol.hash}
    write_tables(run.path, result)
    run.write_result(metrics, **provenance)  # before anything is drawn, which needs more than the measurement did
    films = film_failures(settings, result, device)
    found = Measured(suite, result, others, score, films, account, extra)
    drawn = {"wall_s": run.wall_s, "seed": settings.seed, "device": device, "workers": max(1, settings.workers)}
    publish(run, report_page(found, run.path, **drawn))
    run.write_result({**metrics, IMAGES_NOTE: films.note}, **provenance)


def say(settings: BenchmarkSettings, run: RunDirectory, stored: Mapping[str, Any]) -> None:
    """Print the closing table, or how a comparison was decided before the last episode."""
    metrics = stored["metrics"]
    if "score" not in metrics:
        n, most, verdict = (metrics["race"][key] for key in ("n", "n_max", "verdict"))
        episodes = "episodes of each" if settings.stopping == StepRule.name else "paired episodes"
        console().print(f"{verdict} after {n} of at most {most} {episodes} (a: {settings.against})", markup=False)
        return
    show(metrics, stored["protocol_hash"])
    console().print(protocol_line(EvalResult.load(run.path).protocol, run.path), markup=False)
    say_planning(metrics)
    say_assets(metrics)
    notes = filter(None, [metrics[IMAGES_NOTE]])
    for line in [*notes, *(f"warning: {warning}" for warning in metrics.get("warnings", ()))]:
        console().print(line, markup=False)
    console().print(f"report: {run.path / 'report.html'}", markup=False)


def finish_sequential_comparison(
    settings: BenchmarkSettings, run: RunDirectory, over: ComparisonDecided, device: str
) -> None:
    """Write down a comparison that was decided before the last episode; no rate is claimed from a part of them."""
    metrics = {"suite": settings.suite, "policy": settings.policy, "race": over.comparison.metrics(over.decision)}
    run.write_result(metrics, seed=settings.seed, device=device, protocol_hash=over.comparison.protocol.hash)


def sequential_comparison_of(settings: BenchmarkSettings, protocol: EvalProtocol) -> SequentialComparison | None:
    """The earlier result that this measurement runs against, if any; other seeds' results are checked beside it.

    Raises ProtocolError: one of them was measured under another protocol, which is better known before than after
    hours.
    """
    for folder in settings.others:
        require_same(EvalResult.load(Path(folder)).protocol, protocol)
    if not settings.against:
        return None
    baseline = EvalResult.load(Path(settings.against))
    return sequential_against(baseline, protocol, alpha=settings.plan.alpha, rule=settings.stopping)


def undecided(comparison: SequentialComparison | None, result: EvalResult) -> dict[str, Any]:
    """What a race says that went to its last episode."""
    return {} if comparison is None else {"race": comparison.metrics(comparison.decision(result.outcomes))}


def common_fields(settings: BenchmarkSettings) -> dict[str, Any]:
    """Fields of the protocol that the policy and the settings decide."""
    fields: dict[str, Any] = {
        "first_index": settings.first_index,
        "seed": settings.seed,
        "hold_steps": settings.hold_steps,
    }
    if settings.policy == EXPERT:
        return {**fields, "chunk_length": 1}
    facts = policy_facts(policy_place(settings.policy))
    if settings.temperature is not None and not facts.cameras:
        raise SettingError(f"temperature: {settings.policy} takes its most likely action; leave temperature out")
    fields |= {"chunk_length": facts.chunk_length, "temperature": settings.temperature, "latency": settings.latency}
    return {**fields, "replan": check_timing(settings.replan, settings.latency, facts.chunk_length)}


def measure(
    settings: BenchmarkSettings, run: RunDirectory, device: str, planner: Planner | None
) -> tuple[EvalResult, EpisodeTiming, dict[str, Any]]:
    """Measure on the suite of the settings."""
    name, identity = with_planner(policy_place(settings.policy).name, identity_of(settings), planner)
    with (embedded if settings.suite == EMBEDDED else on_external_suite)(settings) as (player, protocol):
        trained = training_of(settings, protocol)
        comparison = sequential_comparison_of(settings, protocol)
        result = evaluate(
            player,
            actor_of(settings, protocol, device, planner),
            protocol,
            name=name,
            identity=identity,
            out=run.path,
            record_videos=settings.videos,
            on_recording=video_writer(run.path / RECORDINGS, protocol.control_hz) if settings.videos else None,
            comparison=comparison,
        )
    planned = planning_metrics(settings.planner, [outcome.planned for outcome in result.outcomes])
    return result, player.spent, {**planned, **player.facts, **trained, **undecided(comparison, result)}


@contextmanager
def embedded(settings: BenchmarkSettings) -> Generator[tuple[EmbeddedPlayer, EvalProtocol]]:
    """Open the embedded suite, in this environment."""
    fields, tasks = common_fields(settings), choose_tasks(settings.tasks, None)
    if settings.policy != EXPERT:
        facts = policy_facts(policy_place(settings.policy))
        fields["image_size"] = facts.image_size
        fields["cameras"] = embedded_cameras(tasks, images_among(facts.more))
    protocol = embedded_protocol(
        tasks, episodes_per_task=settings.episodes, initial_states="sampled", domain=settings.domain, **fields
    )
    if settings.policy != EXPERT:
        fitting_facts(policy_place(settings.policy), protocol)
    each = max(1, settings.envs // max(1, settings.workers))
    limits = settings.workers, each, settings.timeout_s, settings.restarts, recycle_after_of(settings)
    yield EmbeddedPlayer(protocol.env_options, *limits, engine=engine_of(settings)), protocol


@contextmanager
def on_external_suite(settings: BenchmarkSettings) -> Generator[tuple[OpenSuite, EvalProtocol]]:
    """Open an external suite, in its own environment, after its physics has been probed."""
    suite = find_suite(settings.suite, settings.python)
    if settings.policy == EXPERT:
        require_expert("policy", suite, settings.tasks)
    else:
        require_suite_fits(suite, policy_place(settings.policy))
    cameras = cameras_of(settings, suite) if settings.videos > 0 or sees_images(settings) else ()
    image_size = image_size_of(settings, suite)
    with open_external(settings, suite, cameras, image_size) as opened:
        protocol = suite_protocol(
            suite,
            opened.pool.suite,
            tasks=settings.tasks,
            episodes_per_task=settings.episodes,
            shadows=settings.shadows,
            assets_note=opened.assets_note,
            image_size=image_size,
            cameras=cameras_of(settings, suite),
            **common_fields(settings),
        )
        require_size(settings, opened.pool.suite, protocol)
        yield opened, protocol


def image_size_of(settings: BenchmarkSettings, suite: Suite) -> int:
    """Pixels that an external suite draws: the policy's, or of the videos of who sees none."""
    if not sees_images(settings):
        return settings.image_size
    return drawn_size(suite, policy_facts(policy_place(settings.policy)).picture)


def sees_images(settings: BenchmarkSettings) -> bool:
    """Whether who acts sees images: neither a scripted expert nor an agent on vectors does."""
    return settings.policy != EXPERT and bool(policy_facts(policy_place(settings.policy)).cameras)


def require_size(settings: BenchmarkSettings, described: Mapping[str, Any], protocol: EvalProtocol) -> None:
    """Refuse an agent whose vector has another size than the suite's worker says; others were checked before the start."""
    if settings.policy != EXPERT and is_agent(folder := policy_place(settings.policy)):
        shown = described.get("policy_size")
        require_vector_fits(folder, protocol.actions, f"the suite {settings.suite}", shown=shown)


def training_of(settings: BenchmarkSettings, protocol: EvalProtocol) -> dict[str, Any]:
    """What the result says about the policy's training; a scripted expert had none."""
    if settings.policy == EXPERT:
        return {}
    facts = policy_facts(policy_place(settings.policy))
    return examine(protocol, facts.trained_on, refuse=settings.refuse_training_states)
