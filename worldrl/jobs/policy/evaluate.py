"""``worldrl evaluate``: measures one policy in the physics simulator, and continues where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.device import resolve_device
from worldrl.core.observation import images_among
from worldrl.core.storage.log import console
from worldrl.evaluation.policy.evaluate import evaluate_policy
from worldrl.evaluation.policy.protocol import DOMAINS, EvalProtocol, embedded_protocol
from worldrl.evaluation.policy.trained_on import examine
from worldrl.recipes.evaluation_output import DOMAIN, HOLD_STEPS, show, video_writer
from worldrl.recipes.run import choose_tasks, open_run
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.chunk_timing import check_timing
from worldrl.rollout.real.embedded import embedded_cameras
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import require_styles
from worldrl.settings import non_negative, one_of, positive, required, setting


@dataclass
class EvaluateSettings:
    """Which policy, and under which protocol."""

    policy: str = required("folder of the policy", made_by="worldrl train-policy")
    run_dir: str = setting("runs/evaluate", "where everything is written")
    seed: int = setting(0, "of the initial states and of sampling")
    device: str = setting("cpu", "where the policy runs: cpu, cuda, cuda:N or auto")
    workers: int = setting(2, "simulator processes; 0 runs in this process")
    envs_per_worker: int = setting(4, "environments per process, and the largest batch of a decision")
    timeout_s: float = setting(120.0, "longest silence of a worker before it is restarted (s)")
    tasks: list[str] = setting([], "names of tasks; empty takes all tasks of kind")
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
    videos: int = setting(1, "episodes per task recorded as mp4")

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("workers", "first_index", "hold_steps", "videos", "latency"):
            non_negative(name, getattr(self, name))
        for name in ("envs_per_worker", "timeout_s", "episodes"):
            positive(name, getattr(self, name))
        one_of("initial_states", self.initial_states, ("sampled", "stored"))
        one_of("instruction_mode", self.instruction_mode, ("canonical", "paraphrase", "held_out"))
        one_of("domain", self.domain, DOMAINS)
        require_styles([self.style], field="style")


def main(settings: EvaluateSettings) -> dict[str, Any]:
    """Run the missing episodes, write ``result.json`` and print the closing table.

    Returns the metrics of :meth:`~worldrl.evaluation.policy.result.EvalResult.metrics`.
    """
    device = str(resolve_device(settings.device))
    protocol = make_protocol(settings)
    trained = examine(protocol, policy_facts(Path(settings.policy)).trained_on, refuse=False)
    for warning in trained["warnings"]:
        console().print(f"warning: {warning}", markup=False, soft_wrap=True)
    with open_run("evaluate", settings) as run:
        options = protocol.env_options
        result = evaluate_policy(
            EmbeddedPlayer(options, settings.workers, settings.envs_per_worker, settings.timeout_s),
            Path(settings.policy),
            protocol,
            device=device,
            out=run.path,
            record_videos=settings.videos,
            on_recording=video_writer(run.path / "videos", protocol.control_hz),
        )
        metrics = {**result.metrics(), **trained}
        run.write_result(metrics, seed=settings.seed, device=device, protocol_hash=protocol.hash)
    show(metrics, protocol.hash)
    return metrics


def make_protocol(settings: EvaluateSettings) -> EvalProtocol:
    """The protocol of these settings; image size and chunk length are the policy's own."""
    facts = policy_facts(Path(settings.policy))
    replan = check_timing(settings.replan, settings.latency, facts.chunk_length)
    tasks = choose_tasks(settings.tasks, settings.kind)
    return embedded_protocol(
        tasks,
        episodes_per_task=settings.episodes,
        seed=settings.seed,
        chunk_length=facts.chunk_length,
        image_size=facts.image_size,
        cameras=embedded_cameras(tasks, images_among(facts.more)),
        replan=replan,
        latency=settings.latency,
        initial_states=settings.initial_states,
        first_index=settings.first_index,
        temperature=settings.temperature,
        hold_steps=settings.hold_steps,
        instruction_mode=settings.instruction_mode,
        style=settings.style,
        domain=settings.domain,
    )
