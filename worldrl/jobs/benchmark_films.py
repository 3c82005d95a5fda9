"""Who acts in which suite, and failed episodes run again for the report's pictures.

The measurement is over and written down when films are made: whatever they lack (a renderer, a worker) is said beside the
result and never instead of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from worldrl.core.errors import WorldrlError
from worldrl.core.jsonfile import digest
from worldrl.core.types import Episode
from worldrl.evaluation.evaluate import policy_actor
from worldrl.evaluation.protocol import EvalProtocol
from worldrl.evaluation.result import EvalResult
from worldrl.jobs.benchmark_report import Films, choose_failures
from worldrl.jobs.suite_opening import OpenSuite, open_suite
from worldrl.rollout.actors import AnyActor, ExpertActor, PolicyActor, actor_to_json
from worldrl.rollout.policy_folder import policy_facts
from worldrl.rollout.real import rollout_episodes
from worldrl.rollout.specs import EpisodeOutcome, EpisodeSpec
from worldrl.rollout.suite_episodes import Rules, play_episodes
from worldrl.rollout.suites import main_camera

if TYPE_CHECKING:
    from worldrl.jobs.benchmark import BenchmarkSettings

EMBEDDED, EXPERT = "embedded", "expert"


def open_foreign(
    settings: BenchmarkSettings, cameras: Sequence[str], image_size: int
) -> AbstractContextManager[OpenSuite]:
    """Start the suite's workers as the settings say."""
    return open_suite(
        settings.suite,
        cameras=cameras,
        image_size=image_size,
        shadows=settings.shadows,
        assets=settings.assets,
        assets_note=settings.assets_note,
        workers=settings.workers,
        slots=settings.envs,
        timeout_s=settings.timeout_s,
        restarts=settings.restarts,
        recycle_after=settings.recycle_after,
    )


def cameras_of(settings: BenchmarkSettings) -> tuple[str, ...]:
    """Return the suite's cameras that are drawn: its main one, and those that the policy looks through besides."""
    own = () if settings.policy == EXPERT else policy_facts(Path(settings.policy)).cameras[1:]
    return (main_camera(settings.suite), *own)


def actor_of(settings: BenchmarkSettings, protocol: EvalProtocol, device: str) -> AnyActor:
    """Who acts."""
    if settings.policy == EXPERT:
        return ExpertActor()
    return policy_actor(Path(settings.policy), protocol, device)


def identity_of(settings: BenchmarkSettings, actor: AnyActor) -> str:
    """Identity of the policy's weights, or of the scripted actor's settings."""
    if isinstance(actor, PolicyActor):
        return policy_facts(Path(settings.policy)).hash
    return digest(actor_to_json(actor))


def film_failures(settings: BenchmarkSettings, result: EvalResult, device: str) -> Films:
    """Run some failed episodes again, with pictures, as far as that goes."""
    specs = [result.outcomes[at].spec for at in choose_failures(result, settings.failures)]
    filmed: list[Episode] = []
    try:
        for item in _play(settings, result.protocol, specs, device):
            if isinstance(item, Episode):
                filmed.append(item)
    except WorldrlError as error:
        why = str(error).splitlines()[0]
        return Films(filmed, f"Pictures of {len(filmed)} of {len(specs)} failed episodes could be drawn: {why}")
    return Films(filmed)


def _play(
    settings: BenchmarkSettings, protocol: EvalProtocol, specs: Sequence[EpisodeSpec], device: str
) -> Iterator[Episode | EpisodeOutcome]:
    if not specs:
        return
    actor = actor_of(settings, protocol, device)
    if settings.suite == EMBEDDED:
        # In a process of its own: a renderer that fails takes nothing else along.
        yield from rollout_episodes(
            specs,
            actor=actor,
            env_options=protocol.env_options,
            workers=1,
            timeout_s=settings.timeout_s,
            hold_steps=protocol.hold_steps,
            restarts=settings.restarts,
        )
        return
    cameras = cameras_of(settings)
    with open_foreign(settings, cameras, protocol.image_size) as suite:
        rules = Rules(protocol.horizon, cameras, protocol.hold_steps, range(len(specs)))
        yield from play_episodes(suite.pool, specs, actor, rules)
