"""``worldrl evaluate``: measures one policy in a physics simulator, and continues where it stopped."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.observation import images_among
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.log import console
from worldrl.core.storage.run import RESULT, RunDirectory
from worldrl.evaluation.policy.evaluate import evaluate_policy
from worldrl.evaluation.policy.protocol import DOMAINS, EvalProtocol, embedded_protocol, suite_protocol
from worldrl.evaluation.policy.trained_on import examine
from worldrl.recipes.evaluation_output import DOMAIN, HOLD_STEPS, say_assets, show, video_writer
from worldrl.recipes.planning import planner_of, planning_metrics, say_planning
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
from worldrl.rollout.agents.policy_folder import PolicyFacts, policy_facts, policy_place
from worldrl.rollout.chunk_timing import check_timing
from worldrl.rollout.planning.config import NONE, PLANNER, Planner, PlanningConfig
from worldrl.rollout.real.embedded import embedded_cameras
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import require_styles
from worldrl.rollout.suites.names import EMBEDDED, SHADOWS, SUITE, SUITE_PYTHON, require_suite_name
from worldrl.settings import non_negative, one_of, positive, required, setting

if TYPE_CHECKING:
    from worldrl.evaluation.policy.result import EvalResult
    from worldrl.recipes.suites.opening import OpenSuite

OF_THE_EMBEDDED = {
    "kind": None,
    "initial_states": "sampled",
    "instruction_mode": "canonical",
    "style": "default",
    "domain": "clean",
}
"""Settings that external suites lack, and their defaults."""


@dataclass
class EvaluateSettings:
    """Which policy, and under which protocol."""

    policy: str = required("folder of the policy, or its address ws://HOST:PORT", made_by="worldrl train-policy")
    run_dir: str = setting("runs/evaluate", "where everything is written")
    seed: int = setting(0, "of the initial states and of sampling")
    device: str = setting("cpu", "where the policy runs: cpu, cuda, cuda:N or auto")
    workers: int = setting(2, "simulator processes; 0 runs in this process")
    envs_per_worker: int = setting(4, "environments per process, and the largest batch of a decision")
    timeout_s: float = setting(120.0, "longest silence of a worker before it is restarted (s)")
    engine: str = setting("local", ENGINE)
    ray: RayOptions = field(default_factory=RayOptions, metadata={"only_with": WITH_RAY})
    suite: str = setting(EMBEDDED, SUITE)
    python: str = setting("", SUITE_PYTHON)
    tasks: list[str] = setting([], "names of tasks; empty takes all, in the embedded suite of kind")
    kind: str | None = setting(None, "object, spatial, goal or long; bimanual for two arms; null for all of one arm")
    episodes: int = setting(20, "initial states of each task")
    first_index: int = setting(0, "number of the first initial state")
    initial_states: str = setting("sampled", "sampled from (task, index, seed), or stored with the suite")
    temperature: float | None = setting(None, "sampling temperature; null is greedy")
    replan: int | None = setting(None, "actions executed of each chunk; null for all")
    latency: int = setting(0, "control steps that a decision takes, during which the robot executes the previous chunk")
    hold_steps: int = setting(0, HOLD_STEPS)
    instruction_mode: str = setting("canonical", "kind of instructions: canonical, paraphrase or held_out")
    style: str = setting("default", "visual style of the scene")
    domain: str = setting("clean", DOMAIN)
    shadows: bool = setting(True, SHADOWS)
    videos: int = setting(1, "episodes per task recorded as mp4")
    planner: str = setting(NONE, PLANNER)
    planning: PlanningConfig = field(default_factory=PlanningConfig, metadata={"only_with": f"planner!={NONE}"})
    monitor: str | None = setting(
        None,
        "folder of a monitor (collect false_alarms=0.05); measures how well it detects failures of running episodes",
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        require_suite_name(self.suite)
        check_engine(self)
        changed = [name for name, default in OF_THE_EMBEDDED.items() if getattr(self, name) != default]
        if self.suite != EMBEDDED and changed:
            raise SettingError(f"{changed[0]}: has an effect in the embedded suite only, not with suite={self.suite}")
        if self.suite != EMBEDDED and not self.workers:
            raise SettingError(f"workers: suite={self.suite} runs in processes of its own; give workers=1 or more")
        for name in ("workers", "first_index", "hold_steps", "videos", "latency"):
            non_negative(name, getattr(self, name))
        for name in ("envs_per_worker", "timeout_s", "episodes"):
            positive(name, getattr(self, name))
        one_of("initial_states", self.initial_states, ("sampled", "stored"))
        one_of("instruction_mode", self.instruction_mode, ("canonical", "paraphrase", "held_out"))
        one_of("domain", self.domain, DOMAINS)
        require_styles([self.style], field="style")
        if self.monitor is not None:
            from worldrl.recipes.monitor import check_monitored

            check_monitored(self)


def main(settings: EvaluateSettings) -> dict[str, Any]:
    """Run the missing episodes, write ``result.json`` and print the closing table.

    Returns the metrics of :meth:`~worldrl.evaluation.policy.result.EvalResult.metrics`. A finished run is read: no
    simulator starts.
    """
    device, facts = str(resolve_device(settings.device)), policy_facts(policy_place(settings.policy))
    planner = planner_of(settings, settings.policy, latency=settings.latency)
    with open_run("evaluate", settings) as run:
        claim_inputs(run, measured_inputs(settings.policy, facts.hash, settings.suite, planner))
        if not (run.path / RESULT).exists():
            measure(settings, run, facts, device, planner)
        result = read_json(run.path / RESULT)
    show(result["metrics"], result["protocol_hash"])
    say_planning(result["metrics"])
    say_detection(result["metrics"])
    say_assets(result["metrics"])
    return result["metrics"]


def measure(
    settings: EvaluateSettings, run: RunDirectory, facts: PolicyFacts, device: str, planner: Planner | None
) -> None:
    """Run the missing episodes and write ``result.json``."""
    with opened(settings, facts) as (player, protocol):
        monitor = monitor_of(settings, protocol)
        trained = examine(protocol, facts.trained_on, refuse=False)
        for warning in trained["warnings"]:
            console().print(f"warning: {warning}", markup=False, soft_wrap=True)
        result = evaluate_policy(
            player,
            policy_place(settings.policy),
            protocol,
            device=device,
            planner=planner,
            monitor=settings.monitor,
            out=run.path,
            record_videos=settings.videos,
            on_recording=video_writer(run.path / "videos", protocol.control_hz),
        )
        planned = planning_metrics(settings.planner, [outcome.planned for outcome in result.outcomes])
        metrics = {**result.metrics(), **planned, **detected(monitor, result), **player.facts, **trained}
        run.write_result(metrics, seed=settings.seed, device=device, protocol_hash=protocol.hash)


def monitor_of(settings: EvaluateSettings, protocol: EvalProtocol) -> dict[str, float]:
    """Steps by task after which time alone would alarm, of the monitor asked for; empty without one."""
    if settings.monitor is None:
        return {}
    from worldrl.recipes.monitor import check_monitor

    return {task: limits.steps_limit for task, limits in check_monitor(settings, protocol.tasks).tasks.items()}


def detected(steps_limit: Mapping[str, float], result: EvalResult) -> dict[str, Any]:
    """What the result says of the monitor; nothing without one."""
    if not steps_limit:
        return {}
    from worldrl.evaluation.policy.failure_detection import failure_detection

    return failure_detection(result.outcomes, steps_limit, seed=result.protocol.seed)


def say_detection(metrics: Mapping[str, Any]) -> None:
    """Print what the monitor found, below the closing table."""
    if metrics.get("failure_detection"):
        from worldrl.evaluation.policy.failure_detection import described

        console().print(described(metrics["failure_detection"]), markup=False, soft_wrap=True)


def opened(
    settings: EvaluateSettings, facts: PolicyFacts
) -> AbstractContextManager[tuple[EmbeddedPlayer | OpenSuite, EvalProtocol]]:
    """What plays the episodes, and the protocol; image size and chunk length are the policy's own."""
    fields: dict[str, Any] = {
        "episodes_per_task": settings.episodes,
        "seed": settings.seed,
        "chunk_length": facts.chunk_length,
        "replan": check_timing(settings.replan, settings.latency, facts.chunk_length),
        "latency": settings.latency,
        "first_index": settings.first_index,
        "temperature": settings.temperature,
        "hold_steps": settings.hold_steps,
    }
    if settings.suite != EMBEDDED:
        return external(settings, facts, fields)
    tasks = choose_tasks(settings.tasks, settings.kind)
    own = {name: getattr(settings, name) for name in OF_THE_EMBEDDED if name != "kind"}
    cameras = embedded_cameras(tasks, images_among(facts.more))
    protocol = embedded_protocol(tasks, image_size=facts.image_size, cameras=cameras, **fields, **own)
    limits = settings.workers, settings.envs_per_worker, settings.timeout_s
    return nullcontext((EmbeddedPlayer(protocol.env_options, *limits, engine=engine_of(settings)), protocol))


@contextmanager
def external(
    settings: EvaluateSettings, facts: PolicyFacts, fields: Mapping[str, Any]
) -> Generator[tuple[OpenSuite, EvalProtocol]]:
    """An external suite's workers; SettingError for a policy that does not fit it, or sees no image."""
    from worldrl.recipes.suites.opening import fit_for, open_suite
    from worldrl.rollout.suites.registry import find_suite, require_suite_fits
    from worldrl.rollout.suites.suite import Workers, drawn_size

    suite, policy = find_suite(settings.suite, settings.python), policy_place(settings.policy)
    if not facts.cameras:
        raise SettingError(f"policy: {policy} acts on a vector of numbers; measure it with worldrl benchmark")
    require_suite_fits(suite, policy)
    cameras, size = (suite.main_camera, *facts.cameras[1:]), drawn_size(suite, facts.picture)
    slots = settings.workers * settings.envs_per_worker
    drawn = {"shadows": settings.shadows, "fit": fit_for(suite, policy)}
    asked = Workers(cameras, size, settings.workers, slots, **drawn)
    with open_suite(suite, asked, timeout_s=settings.timeout_s, engine=engine_of(settings)) as player:
        described = player.pool.suite
        shown = {"image_size": size, "cameras": cameras, "assets_note": player.assets_note}
        own = {"tasks": settings.tasks, "shadows": settings.shadows}
        yield player, suite_protocol(suite, described, **own, **shown, **fields)
