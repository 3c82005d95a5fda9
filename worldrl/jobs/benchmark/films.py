"""Who acts in which suite, and failed episodes run again for the report's images.

The measurement is over and written down when films are made: whatever they lack (a renderer, a worker) is said beside the
result and never instead of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from worldrl.core.errors import SettingError, WorldrlError
from worldrl.core.image_fit import Fit
from worldrl.core.storage.jsonfile import digest
from worldrl.core.types import Episode
from worldrl.evaluation.policy.evaluate import policy_actor
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.jobs.benchmark.report import EMBEDDED, EXPERT, Films, choose_failures
from worldrl.methods.offline.agent import load_agent, saved_algorithm
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.recipes.offline.settings import offline_agent
from worldrl.recipes.planning import planner_of
from worldrl.recipes.run import engine_of
from worldrl.recipes.suites.opening import OpenSuite, fit_for, open_suite
from worldrl.rollout.agents.actors import AnyActor, ExpertActor, actor_to_json
from worldrl.rollout.agents.policy_folder import is_agent, policy_facts, policy_place
from worldrl.rollout.agents.vector_agent import VectorActor, vector_facts
from worldrl.rollout.planning.config import Planner
from worldrl.rollout.real.episodes import Player, Result
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.registry import find_suite
from worldrl.rollout.suites.suite import Suite, Workers

if TYPE_CHECKING:
    from worldrl.jobs.benchmark.benchmark import BenchmarkSettings


def open_external(
    settings: BenchmarkSettings, suite: Suite, cameras: Sequence[str], image_size: int
) -> AbstractContextManager[OpenSuite]:
    """Start the suite's workers as the settings say."""
    asked = Workers(
        tuple(cameras),
        image_size,
        settings.workers,
        settings.envs,
        settings.restarts,
        recycle_after_of(settings),
        settings.shadows,
        settings.assets,
        Fit.stretch if settings.policy == EXPERT else fit_for(suite, policy_place(settings.policy)),
    )
    limits = {"timeout_s": settings.timeout_s, "engine": engine_of(settings)}
    return open_suite(suite, asked, **limits, assets_note=settings.assets_note)


def recycle_after_of(settings: BenchmarkSettings) -> int:
    """Episodes that a worker plays: vendors' simulators leak most, and a worker of the embedded suite loads the policy anew."""
    return settings.recycle_after or (250 if settings.suite == EMBEDDED else 50)


def cameras_of(settings: BenchmarkSettings, suite: Suite) -> tuple[str, ...]:
    """Return the suite's cameras that are drawn: its main one, and those that the policy observes besides."""
    own = () if settings.policy == EXPERT else policy_facts(policy_place(settings.policy)).cameras[1:]
    return (suite.main_camera, *own)


def planner_for(settings: BenchmarkSettings) -> Planner | None:
    """Open the planner around the measured policy; errors as of :func:`planner_of`."""
    return planner_of(settings, None if settings.policy == EXPERT else settings.policy, latency=settings.latency)


def actor_of(
    settings: BenchmarkSettings, protocol: EvalProtocol, device: str, planner: Planner | None
) -> AnyActor | VectorActor:
    """Who acts."""
    if settings.policy == EXPERT:
        return ExpertActor()
    if is_agent(folder := policy_place(settings.policy)):
        return agent_actor(folder, device)
    return policy_actor(folder, protocol, device, planner)


def agent_actor(folder: Path, device: str) -> VectorActor:
    """Load an offline agent to play.

    Raises SettingError (it remembers its episode's rewards, which suites do not show).
    """
    kind = offline_agent(saved_algorithm(folder))
    if issubclass(kind, Neubay):
        raise SettingError(
            f"{folder}: {kind.name} acts by the rewards of its episode, and suites show none; give another"
        )
    facts = vector_facts(folder)
    return VectorActor(load_agent(folder, kind).to(device), facts.low, facts.high, device)


def identity_of(settings: BenchmarkSettings) -> str:
    """Identity of the policy's weights, or of the scripted actor's settings."""
    if settings.policy == EXPERT:
        return digest(actor_to_json(ExpertActor()))
    return policy_facts(policy_place(settings.policy)).hash


def film_failures(settings: BenchmarkSettings, result: EvalResult, device: str) -> Films:
    """Run some failed episodes again, with images, as far as that goes."""
    specs = [result.outcomes[at].spec for at in choose_failures(result, settings.failures)]
    filmed: list[Episode] = []
    try:
        for item in _play(settings, result.protocol, specs, device):
            if isinstance(item, Episode):
                filmed.append(item)
    except WorldrlError as error:
        why = str(error).splitlines()[0]
        return Films(filmed, f"Images of {len(filmed)} of {len(specs)} failed episodes could be drawn: {why}")
    return Films(filmed)


def _play(
    settings: BenchmarkSettings, protocol: EvalProtocol, specs: Sequence[EpisodeSpec], device: str
) -> Iterator[Result]:
    if not specs:
        return
    actor = actor_of(settings, protocol, device, planner_for(settings))
    with _player(settings, protocol) as player:
        yield from player.play(
            [(spec, actor) for spec in specs], hold_steps=protocol.hold_steps, horizon=protocol.horizon
        )


def _player(settings: BenchmarkSettings, protocol: EvalProtocol) -> AbstractContextManager[Player]:
    if settings.suite == EMBEDDED:
        # In a process of its own: a renderer that fails takes nothing else along.
        limits = {"timeout_s": settings.timeout_s, "restarts": settings.restarts}
        return nullcontext(EmbeddedPlayer(protocol.env_options, workers=1, **limits))
    suite = find_suite(settings.suite, settings.python)
    if not suite.spec.cameras:
        raise SettingError(f"{suite.name} has no cameras")
    return open_external(settings, suite, cameras_of(settings, suite), protocol.image_size)
