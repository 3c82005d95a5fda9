"""Measures a policy in the real simulator under a protocol; an interrupted evaluation resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Required, TypedDict, Unpack

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
from worldrl.rollout.real.embedded import WRISTS
from worldrl.rollout.real.rollouts import rollout_episodes
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec

if TYPE_CHECKING:
    from worldrl.evaluation.policy.sequential_comparison import SequentialComparison
    from worldrl.rollout.agents.vector_agent import VectorActor

Runner = Callable[[Sequence[EpisodeSpec], Sequence[int]], Iterator[Episode | EpisodeOutcome]]
"""Runs episodes in any order; the episodes at the given positions are returned with frames."""


class Measuring(TypedDict, total=False):
    """Where outcomes go, and when a measurement ends.

    Attributes:
        out: outcomes are written here as they come, and read again after an interruption; None stores nothing.
        record_videos: episodes per task that are recorded with frames.
        on_recording: receives each recorded episode before its outcome counts.
        comparison: an earlier result to compare with; it decides the order and may end the measurement.
    """

    out: Path | None
    record_videos: int
    on_recording: Callable[[Episode], None] | None
    comparison: SequentialComparison | None


class Running(Measuring, total=False):
    """Simulator processes of the embedded suite.

    Attributes:
        workers: processes; 0 runs in this process.
        envs_per_worker: environments per process, and the largest batch of a decision (4).
        timeout_s: longest silence of a worker (120 s).
        restarts: restarts of a worker per episode (1).
        recycle_after: episodes after which a worker is replaced; None never.
    """

    workers: Required[int]
    envs_per_worker: int
    timeout_s: float
    restarts: int
    recycle_after: int | None


def evaluate_policy(
    folder: Path, protocol: EvalProtocol, *, device: str = "cpu", **options: Unpack[Running]
) -> EvalResult:
    """Measure the policy in an artefact folder on a torch device; each episode of the protocol is run exactly once.

    Raises:
        ComparisonDecided: the sequential comparison is decided; the outcomes so far are stored in ``out``.
        ArtefactError: there is no policy in the folder.
        SettingError: the policy's inputs or its number of actions differ from the suite's; both specs are named.
        ProtocolError: chunk length or actions differ from the protocol's, or ``out`` holds another evaluation.
        WorkerError: a worker failed; the outcomes so far are stored in ``out``.
    """
    facts = fitting_facts(folder, protocol)
    actor = policy_actor(folder, protocol, device)
    return evaluate_actor(actor, protocol, name=folder.name, policy_hash=facts.hash, **options)


def fitting_facts(folder: Path, protocol: EvalProtocol) -> PolicyFacts:
    """Facts of a policy that fits a protocol; errors as in :func:`evaluate_policy`."""
    cameras = (*protocol.cameras[:1], *WRISTS[protocol.actions.absolute])
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
            f"actions: the policy in {folder} has as many actions as the robot of these tasks, with another meaning (its own -> "
            f"the robot's): {difference(own, wanted)}; evaluate it on its own robot's tasks"
        )
    return facts


def policy_actor(folder: Path, protocol: EvalProtocol, device: str) -> PolicyActor:
    """Actor with the decoding and timing of a protocol."""
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
    **measuring: Unpack[Measuring],
) -> EvalResult:
    """Measure any actor, for example the scripted expert.

    ``policy_hash`` identifies its weights; None takes the hash of the actor's settings. Errors as in :func:`evaluate_policy`.
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
        provenance=surroundings(actor, protocol, workers=workers, envs_per_worker=envs_per_worker),
        **measuring,
    )


def surroundings(actor: AnyActor, protocol: EvalProtocol, *, workers: int, envs_per_worker: int) -> Provenance:
    """Provenance of a measurement in the embedded suite; the renderer is recorded only where a policy receives images."""
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
    """Torch device of an actor; a scripted actor runs on the CPU."""
    from worldrl.rollout.agents.vector_agent import VectorActor

    return actor.device if isinstance(actor, PolicyActor | VectorActor) else "cpu"


def computing(actor: AnyActor | VectorActor) -> dict[str, str]:
    """Number type and attention kernel of an actor."""
    from worldrl.policies.lerobot.folder import WEIGHTS, is_lerobot_folder
    from worldrl.rollout.agents.vector_agent import VectorActor

    # lerobot's environment chooses the attention of its policies and does not report it.
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
    comparison: SequentialComparison | None = None,
    provenance: Provenance | None = None,
) -> EvalResult:
    """Measure with any runner of episodes: the embedded simulator, or the workers of another suite.

    ``identity`` is the hash of the actor's weights or settings; without ``provenance`` none is stored.
    """
    log = EvalLog(out, header_json(protocol, name, identity, provenance))
    known = {outcome.spec.key for outcome in log.outcomes}
    specs = [spec for spec in protocol.specs() if spec.key not in known]
    if comparison is not None:
        comparison.check(log.outcomes)
        specs = comparison.arrange(specs)
    record = positions_to_record(specs, protocol, record_videos if on_recording else 0)
    with Progress(f"evaluate {name}", total=len(specs) + len(known), start=len(known), unit="episodes") as progress:
        for item in run(specs, record):
            if isinstance(item, Episode) and on_recording:
                on_recording(item)
            log.add(EpisodeOutcome.of(item) if isinstance(item, Episode) else item)
            progress.advance()
            if comparison is not None:
                comparison.check(log.outcomes)
    by_key = {outcome.spec.key: outcome for outcome in log.outcomes}
    outcomes = tuple(by_key[spec.key] for spec in protocol.specs())
    return EvalResult(protocol, name, identity, outcomes, log.provenance)


def positions_to_record(specs: list[EpisodeSpec], protocol: EvalProtocol, per_task: int) -> list[int]:
    """Positions in ``specs`` of the first ``per_task`` initial states of each task."""
    return [position for position, spec in enumerate(specs) if spec.index - protocol.first_index < per_task]
