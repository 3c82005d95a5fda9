"""Measures a policy in the real simulator under a protocol; an interrupted evaluation continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from worldrl.core.device import attention_kernel
from worldrl.core.errors import ProtocolError
from worldrl.core.storage.jsonfile import difference, digest
from worldrl.core.storage.log import Progress
from worldrl.core.storage.tensorfile import number_types
from worldrl.core.types import Episode
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.provenance import Provenance, provenance
from worldrl.evaluation.policy.result import EvalLog, EvalResult, header_json
from worldrl.rollout.agents.actors import AnyActor, PolicyActor, actor_to_json
from worldrl.rollout.agents.policy_folder import PolicyFacts, policy_facts, require_policy_fits
from worldrl.rollout.real.rollouts import rollout_episodes
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec

if TYPE_CHECKING:
    from worldrl.evaluation.policy.sequential_comparison import SequentialComparison
    from worldrl.rollout.agents.vector_agent import VectorActor

Runner = Callable[[Sequence[EpisodeSpec], Sequence[int]], Iterator[Episode | EpisodeOutcome]]
"""Runs episodes, in any order; those whose positions it is given come back as full records."""


def evaluate_policy(
    folder: Path,
    protocol: EvalProtocol,
    *,
    workers: int,
    envs_per_worker: int = 4,
    device: str = "cpu",
    timeout_s: float = 120.0,
    restarts: int = 1,
    recycle_after: int | None = None,
    out: Path | None = None,
    record_videos: int = 0,
    on_recording: Callable[[Episode], None] | None = None,
    comparison_rule: SequentialComparison | None = None,
) -> EvalResult:
    """Measure a policy.

    Args:
        folder: the policy's artefact folder.
        protocol: what to measure; each of its episodes is run exactly once.
        workers: simulator processes; 0 runs in this process.
        envs_per_worker: environments per process, and the largest batch of a decision.
        device: torch device of the policy, in every worker.
        timeout_s: longest silence of a worker (s).
        restarts: restarts of a worker per episode.
        recycle_after: episodes after which a worker is replaced by a fresh one; None never.
        out: where outcomes are written as they come, and found again after an interruption; None keeps nothing.
        record_videos: episodes per task that are recorded with frames.
        on_recording: receives each recorded episode, before its outcome counts.
        comparison_rule: an earlier result to compare with, which decides the order and may end the measurement.

    Raises:
        ComparisonDecided: the comparison is decided; the outcomes so far are kept in ``out``.
        ArtefactError: no policy there.
        SettingError: its inputs, or the number of its actions, are not the suite's; both specs side by side.
        ProtocolError: the policy has another chunk length or other actions than the protocol, or ``out`` holds another evaluation.
        WorkerError: a worker failed; the outcomes so far are kept in ``out``.
    """
    facts = fitting_facts(folder, protocol)
    return evaluate_actor(
        policy_actor(folder, protocol, device),
        protocol,
        name=folder.name,
        policy_hash=facts.hash,
        workers=workers,
        envs_per_worker=envs_per_worker,
        timeout_s=timeout_s,
        restarts=restarts,
        recycle_after=recycle_after,
        out=out,
        record_videos=record_videos,
        on_recording=on_recording,
        comparison_rule=comparison_rule,
    )


def fitting_facts(folder: Path, protocol: EvalProtocol) -> PolicyFacts:
    """Return what is known of a policy that fits a protocol; the errors are those of :func:`evaluate_policy`."""
    cameras = (*protocol.cameras[:1], *(() if protocol.actions.absolute else ("wrist",)))
    require_policy_fits(folder, protocol.actions, f"the suite {protocol.suite}", cameras=cameras)
    facts = policy_facts(folder)
    if facts.chunk_length != protocol.chunk_length:
        raise ProtocolError(
            f"chunk_length: the policy in {folder} decides {facts.chunk_length} actions at once, the protocol says "
            f"{protocol.chunk_length}; take the policy's"
        )
    if facts.actions != protocol.actions:  # as many numbers, or it would have been refused above
        own, wanted = asdict(facts.actions), asdict(protocol.actions)
        raise ProtocolError(
            f"actions: the policy in {folder} acts with as many numbers as the robot of these tasks, and means others by them (its own -> "
            f"the robot's): {difference(own, wanted)}; evaluate it on its own robot's tasks"
        )
    return facts


def policy_actor(folder: Path, protocol: EvalProtocol, device: str) -> PolicyActor:
    """Who acts when a protocol measures a policy."""
    return PolicyActor(
        folder=str(folder),
        temperature=protocol.temperature,
        replan=protocol.replan,
        device=device,
        latency=protocol.latency,
    )


def evaluate_actor(
    actor: AnyActor,
    protocol: EvalProtocol,
    *,
    name: str,
    policy_hash: str | None = None,
    workers: int,
    envs_per_worker: int = 4,
    timeout_s: float = 120.0,
    restarts: int = 1,
    recycle_after: int | None = None,
    out: Path | None = None,
    record_videos: int = 0,
    on_recording: Callable[[Episode], None] | None = None,
    comparison_rule: SequentialComparison | None = None,
) -> EvalResult:
    """Measure any actor, for example the scripted expert.

    Args:
        actor: who acts.
        protocol: what to measure.
        name: of the actor, for people.
        policy_hash: identity of its weights; None takes the hash of the actor's settings.
        workers: as in :func:`evaluate_policy`, and so are the others.
        envs_per_worker: environments per process.
        timeout_s: longest silence of a worker (s).
        restarts: restarts of a worker per episode.
        recycle_after: episodes after which a worker is replaced by a fresh one; None never.
        out: where outcomes are written.
        record_videos: episodes per task recorded with frames.
        on_recording: receives them.
        comparison_rule: an earlier result to compare with.
    """

    def run(specs: Sequence[EpisodeSpec], record: Sequence[int]) -> Iterator[Episode | EpisodeOutcome]:
        return rollout_episodes(
            specs,
            actor=actor,
            env_options=protocol.env_options,
            workers=workers,
            envs_per_worker=envs_per_worker,
            timeout_s=timeout_s,
            restarts=restarts,
            recycle_after=recycle_after,
            hold_steps=protocol.hold_steps,
            record=record,
            order="completion",
        )

    return evaluate_with(
        run,
        protocol,
        name=name,
        identity=policy_hash or digest(actor_to_json(actor)),
        out=out,
        record_videos=record_videos,
        on_recording=on_recording,
        comparison_rule=comparison_rule,
        provenance=surroundings(actor, protocol, workers=workers, envs_per_worker=envs_per_worker),
    )


def surroundings(actor: AnyActor, protocol: EvalProtocol, *, workers: int, envs_per_worker: int) -> Provenance:
    """Say on what the embedded suite is run; it is drawn only where a policy looks."""
    from worldrl.simulators.renderer import embedded_drawing

    return provenance(
        protocol.packages,
        device=device_of(actor),
        workers=workers,
        envs=max(1, workers) * envs_per_worker,
        **computing(actor),
        **(embedded_drawing() if isinstance(actor, PolicyActor) else {}),
    )


def device_of(actor: AnyActor | VectorActor) -> str:
    """Torch device that an actor decides on; a scripted one needs none but the processor."""
    from worldrl.rollout.agents.vector_agent import VectorActor

    return actor.device if isinstance(actor, PolicyActor | VectorActor) else "cpu"


def computing(actor: AnyActor | VectorActor) -> dict[str, str]:
    """Number type that an actor decides in, and its attention; lerobot's own environment chooses the latter, and does not tell."""
    from worldrl.policies.lerobot.folder import WEIGHTS, is_lerobot_folder
    from worldrl.rollout.agents.vector_agent import VectorActor

    if isinstance(actor, PolicyActor) and is_lerobot_folder(Path(actor.folder)):
        return {"dtype": ", ".join(number_types(Path(actor.folder) / WEIGHTS))}
    if not isinstance(actor, PolicyActor | VectorActor):
        return {}
    return {"dtype": "float32", "attention": attention_kernel(actor.device)}


def evaluate_with(
    run: Runner,
    protocol: EvalProtocol,
    *,
    name: str,
    identity: str,
    out: Path | None = None,
    record_videos: int = 0,
    on_recording: Callable[[Episode], None] | None = None,
    comparison_rule: SequentialComparison | None = None,
    provenance: Provenance | None = None,
) -> EvalResult:
    """Measure whatever runs episodes: the embedded simulator, or another suite's workers.

    Args:
        run: runs the missing episodes, and keeps the frames of those whose positions it is told.
        protocol: what to measure; each of its episodes is run exactly once.
        name: of who acts, for people.
        identity: of its weights or settings.
        out: where outcomes are written.
        record_videos: episodes per task recorded with frames.
        on_recording: receives them.
        comparison_rule: an earlier result to compare with.
        provenance: on what it is measured; None writes nothing down.
    """
    log = EvalLog(out, header_json(protocol, name, identity, provenance))
    known = {outcome.spec.key for outcome in log.outcomes}
    specs = [spec for spec in protocol.specs() if spec.key not in known]
    if comparison_rule is not None:
        comparison_rule.check(log.outcomes)
        specs = comparison_rule.arrange(specs)
    record = positions_to_record(specs, protocol, record_videos if on_recording else 0)
    with Progress(f"evaluate {name}", total=len(specs) + len(known), start=len(known), unit="episodes") as progress:
        for item in run(specs, record):
            if isinstance(item, Episode) and on_recording:
                on_recording(item)
            log.add(EpisodeOutcome.of(item) if isinstance(item, Episode) else item)
            progress.advance()
            if comparison_rule is not None:
                comparison_rule.check(log.outcomes)
    by_key = {outcome.spec.key: outcome for outcome in log.outcomes}
    outcomes = tuple(by_key[spec.key] for spec in protocol.specs())
    return EvalResult(protocol, name, identity, outcomes, log.provenance)


def positions_to_record(specs: list[EpisodeSpec], protocol: EvalProtocol, per_task: int) -> list[int]:
    """Positions in ``specs`` of the first ``per_task`` initial states of each task."""
    return [position for position, spec in enumerate(specs) if spec.index - protocol.first_index < per_task]
