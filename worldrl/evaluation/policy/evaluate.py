"""Measures an actor in a real suite under a protocol; an interrupted evaluation resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldrl.core.device import attention_kernel
from worldrl.core.errors import ProtocolError
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.jsonfile import difference, digest
from worldrl.core.storage.log import Progress
from worldrl.core.storage.tensorfile import number_types
from worldrl.core.types import Episode
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import EvalLog, EvalResult, Provenance, header_json, provenance
from worldrl.policies.exploration import at_temperature
from worldrl.policies.remote.address import is_remote
from worldrl.rollout.agents.actors import AnyActor, PolicyActor
from worldrl.rollout.agents.policy_folder import PolicyFacts, policy_facts, require_policy_fits
from worldrl.rollout.real.embedded import EMBEDDED_SUITE, WRISTS
from worldrl.rollout.real.episodes import Player
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec

if TYPE_CHECKING:
    from worldrl.evaluation.policy.sequential_comparison import SequentialComparison
    from worldrl.rollout.agents.vector_agent import VectorActor
    from worldrl.rollout.planning.config import Planner


def fitting_facts(folder: Path, protocol: EvalProtocol) -> PolicyFacts:
    """Facts of a policy that fits a protocol of the embedded suite.

    Raises ArtefactError (there is no policy in the folder). Raises SettingError (the policy's inputs or its number of
    actions differ from the suite's; both specs are named). Raises ProtocolError (chunk length or actions differ).
    """
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


def policy_actor(
    folder: Path, protocol: EvalProtocol, device: str, planner: Planner | None = None, monitor: str | None = None
) -> PolicyActor:
    """Actor with the decoding and timing of a protocol."""
    from worldrl.rollout.agents.planned_policy import policy_with

    return policy_with(
        planner,
        monitor=monitor,
        folder=str(folder),
        exploration=at_temperature(protocol.temperature),
        replan=protocol.replan,
        device=device,
        latency=protocol.latency,
    )


def with_planner(name: str, identity: str, planner: Planner | None) -> tuple[str, str]:
    """Name and identity of a policy together with a planner, its settings and its world model."""
    if planner is None:
        return name, identity
    config = {**asdict(planner.config), "world_model": artefact_hash(Path(planner.config.world_model))}
    return f"{name} + {planner.name}", digest([identity, planner.name, config])


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
    if not isinstance(actor, PolicyActor | VectorActor) or (isinstance(actor, PolicyActor) and is_remote(actor.folder)):
        return {}
    return {"dtype": "float32", "attention": attention_kernel(actor.device)}


def evaluate(
    player: Player,
    actor: AnyActor | VectorActor,
    protocol: EvalProtocol,
    *,
    name: str,
    identity: str,
    out: Path | None = None,
    record_videos: int = 0,
    on_recording: Callable[[Episode], None] | None = None,
    comparison: SequentialComparison | None = None,
) -> EvalResult:
    """Measure an actor under a protocol; each of its episodes is run exactly once, in any order.

    Outcomes are written to ``out`` as they come, and read again after an interruption. ``identity`` is the hash of the
    actor's weights or settings. ``record_videos`` episodes of each task are recorded with frames, and each reaches
    ``on_recording`` before its outcome counts. ``comparison`` is an earlier result; it decides the order and may end
    the measurement. Raises ComparisonDecided (it did), ProtocolError (``out`` holds another evaluation) and WorkerError
    (a worker failed); the outcomes so far are stored.
    """
    log = EvalLog(out, header_json(protocol, name, identity, surroundings(player, actor, protocol)))
    known = {outcome.spec.key for outcome in log.outcomes}
    specs = [spec for spec in protocol.specs() if spec.key not in known]
    if comparison is not None:
        comparison.check(log.outcomes)
        specs = comparison.arrange(specs)
    results = player.play(
        [(spec, actor) for spec in specs],
        hold_steps=protocol.hold_steps,
        record=positions_to_record(specs, protocol, record_videos if on_recording else 0),
        order="completion",
        horizon=protocol.horizon,
    )
    with Progress(f"evaluate {name}", total=len(specs) + len(known), start=len(known), unit="episodes") as progress:
        for item in results:
            if isinstance(item, Episode) and on_recording:
                on_recording(item)
            log.add(EpisodeOutcome.of(item) if isinstance(item, Episode) else item)
            progress.advance()
            if comparison is not None:
                comparison.check(log.outcomes)
    by_key = {outcome.spec.key: outcome for outcome in log.outcomes}
    outcomes = tuple(by_key[spec.key] for spec in protocol.specs())
    return EvalResult(protocol, name, identity, outcomes, log.provenance)


def evaluate_policy(
    player: Player,
    folder: Path,
    protocol: EvalProtocol,
    *,
    device: str = "cpu",
    planner: Planner | None = None,
    monitor: str | None = None,
    **measuring: Any,
) -> EvalResult:
    """Measure the policy in an artefact folder on a torch device, with a planner or a monitor's folder if given.

    ``measuring`` and errors as of :func:`evaluate`.

    Raises further, in the embedded suite, those of :func:`fitting_facts`.
    """
    facts = fitting_facts(folder, protocol) if protocol.suite == EMBEDDED_SUITE else policy_facts(folder)
    actor = policy_actor(folder, protocol, device, planner, monitor)
    name, identity = with_planner(folder.name, facts.hash, planner)
    return evaluate(player, actor, protocol, name=name, identity=identity, **measuring)


def surroundings(player: Player, actor: AnyActor | VectorActor, protocol: EvalProtocol) -> Provenance:
    """Provenance of a measurement."""
    ran_in = player.surroundings(images=isinstance(actor, PolicyActor))
    return provenance(protocol.packages, device=device_of(actor), **computing(actor), **ran_in)


def positions_to_record(specs: list[EpisodeSpec], protocol: EvalProtocol, per_task: int) -> list[int]:
    """Positions in ``specs`` of the first ``per_task`` initial states of each task."""
    return [position for position, spec in enumerate(specs) if spec.index - protocol.first_index < per_task]
