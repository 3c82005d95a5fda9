"""``worldrl make-dataset``: offline datasets of six qualities from one SAC training, as Minari datasets.

The recipe is D4RL's (Fu et al., arXiv 2004.07219) with reference returns of its own: ``random`` draws uniform actions;
``expert`` samples from the best kept actor, ``medium`` from the first whose deterministic return reaches
``R_random + (R_expert - R_random) / 3``.
``medium-replay`` is what the learner saw until then, ``full-replay`` all; ``medium-expert`` is half of each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from rich.table import Table

from worldrl.core.errors import ArtefactError, GateError, SettingError
from worldrl.core.extras import require
from worldrl.core.rng import stream, stream_seed
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.capacity import require_disk, require_memory
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.log import MetricLog, Progress, console
from worldrl.core.storage.provenance import code_version, package_versions
from worldrl.core.storage.run import RunDirectory
from worldrl.data.offline.env_spec import registered_spec
from worldrl.data.offline.minari_format import ID, data_folder, write_minari
from worldrl.data.offline.minari_metadata import METADATA, OWN
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories, VectorEpisode, from_episodes, join
from worldrl.methods.offline.datasets.behaviour_actor import BehaviourActor
from worldrl.methods.offline.datasets.behaviour_sac import (
    BehaviourSac,
    Evaluated,
    actor_folder,
    read_experience,
    train_behaviour,
)
from worldrl.recipes.run import open_run
from worldrl.recipes.tracking import Tracked
from worldrl.rollout.vector.episodes import (
    EpisodePolicy,
    environment_info,
    make_environment,
    memoryless,
    play_episode,
    uniform_policy,
)
from worldrl.settings import non_negative, one_of, positive, setting

KINDS = ("random", "medium", "medium-replay", "medium-expert", "expert", "full-replay")
TRAINING, DATASETS = "02-train", "datasets"
ALGORITHM = "Stable-Baselines3 SAC"


@dataclass
class MakeDatasetSettings(Tracked):
    """Which environment, which sets, how large."""

    run_dir: str = setting("runs/make-dataset", "where everything is written")
    seed: int = setting(0, "root of every random stream")
    env: str = setting("Hopper-v5", "Gymnasium environment with vector observations and actions: ID, or MODULE:ID")
    max_episode_steps: int | None = setting(None, "its time limit; null takes the registered one")
    kinds: list[str] = setting(list(KINDS), f"which sets: {', '.join(KINDS)}")
    rows: int = setting(100_000, "steps per set; replay sets have as many as the training had taken")
    reference_episodes: int = setting(100, "episodes over which the returns of score 0 and of score 100 are averaged")
    namespace: str = setting("worldrl", "first part of the datasets' ids: namespace/env/kind-vN")
    version: int = setting(0, "N of the datasets' ids")
    store: str | None = setting(None, "Minari store to write to; null is run_dir/datasets")
    gates: str = setting("stop", "what happens if the expert is no better than random: stop or warn")
    training: BehaviourSac = field(default_factory=BehaviourSac)

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("rows", "reference_episodes"):
            positive(name, getattr(self, name))
        if self.max_episode_steps is not None:
            positive("max_episode_steps", self.max_episode_steps)
        non_negative("version", self.version)
        one_of("gates", self.gates, ("stop", "warn"))
        for kind in self.kinds:
            one_of("kinds", kind, KINDS)
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise SettingError(f"kinds: name at least one, each once, got {self.kinds}")
        if self.rows < 2:
            raise SettingError(f"rows must be at least 2, got {self.rows}; medium-expert has two halves")
        if ID.fullmatch(dataset_id(self, "random")) is None:
            raise SettingError(
                f"namespace: {dataset_id(self, 'random')!r} is no Minari id; use letters, digits, _ and -"
            )


@dataclass(frozen=True)
class Choice:
    """Which actors the sets come from, and what 0 and 100 are."""

    random: float  # mean return of uniform actions.
    expert: float  # mean deterministic return of the best actor, on episodes it was not chosen by.
    medium_step: int  # training steps of the medium actor.
    expert_step: int  # training steps of the best actor.


def main(settings: MakeDatasetSettings) -> dict[str, Any]:
    """Train, choose, record, write; every finished stage is skipped when the command is given again.

    Returns the metrics: the choice, and per set id, folder, rows, episodes and returns. Raises GateError (the best
    actor is no better than random actions and ``gates=stop``). Raises SettingError (the environment is not registered
    or not one of vectors). Raises MissingExtraError (minari or Stable-Baselines3 is not installed).
    """
    require("minari", extra="offline")
    require("h5py", extra="offline")
    require("stable_baselines3", extra="sb3")
    with open_run("make-dataset", settings) as run, MetricLog(run.path, settings.tracker) as log:
        maker = _Maker(run, settings)
        low = maker.stage("01-random-return", maker.measure_random)["return"]
        kept = maker.stage(TRAINING, lambda folder: maker.train(folder, log))["kept"]
        choice = Choice(**maker.stage("03-choose", lambda _: maker.choose(low, kept)))
        _gate(choice, settings.gates)
        sets = {
            kind: maker.stage(f"{number:02}-{kind}", lambda _, kind=kind: maker.make(kind, choice))
            for number, kind in enumerate(KINDS, 4)
            if kind in settings.kinds
        }
        metrics = {"env": settings.env, **asdict(choice), "sets": sets, "trained_returns": kept}
        run.write_result(metrics, seed=settings.seed, device="cpu")
        show(metrics)
    return metrics


class _Maker:
    """The stages of one run."""

    def __init__(self, run: RunDirectory, settings: MakeDatasetSettings) -> None:
        self.run, self.settings = run, settings
        self.env: gymnasium.Env[Any, Any] = make_environment(settings.env, max_episode_steps=settings.max_episode_steps)
        self.info = environment_info(self.env, settings.env)
        require_rows(settings, self.env)
        registered_spec(self.info)  # what cannot be written is refused before hours of training
        self.training = run.path / "stages" / TRAINING

    def stage(self, name: str, work: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """Return what a stage gave, doing it if no earlier start has finished it."""
        stage = self.run.stage(name)
        if not stage.finished:
            stage.finish(work(stage.folder))
        return stage.summary

    def measure_random(self, folder: Path) -> dict[str, Any]:
        policy = uniform_policy(len(self.info.action_low))
        return {"return": self._mean_return(policy, "random reference", sampled=True)}

    def train(self, folder: Path, log: MetricLog) -> dict[str, Any]:
        kept = train_behaviour(
            folder,
            self.settings.env,
            self.settings.training,
            seed=self.settings.seed,
            max_episode_steps=self.settings.max_episode_steps,
            log=log,
        )
        return {"kept": [[one.step, one.value] for one in kept]}

    def choose(self, low: float, kept: Sequence[Sequence[float]]) -> dict[str, Any]:
        actors = [Evaluated(int(step), value) for step, value in kept]
        best = max(actors, key=lambda one: one.value)
        high = self._mean_return(self._actor(best.step), "expert reference", sampled=False)
        return asdict(Choice(low, high, first_medium(actors, low, high).step, best.step))

    def make(self, kind: str, choice: Choice) -> dict[str, Any]:
        """Record and write one set."""
        store = self.store
        identity = dataset_id(self.settings, kind)
        self._claim(store / identity)
        data = replace(self._record(kind, choice), info=self._describe(kind, identity, choice))
        box = self.env.observation_space
        folder = write_minari(
            store,
            data,
            observation_space=box if isinstance(box, spaces.Box) else None,
            algorithm="uniform actions" if kind == "random" else ALGORITHM,
            author="worldrl make-dataset",
            description=f"{kind} set of {self.settings.env}, self-made",
            score_episodes=self.settings.reference_episodes,
        )
        return {"id": identity, "folder": str(folder), **summarise(data)}

    @property
    def store(self) -> Path:
        """Where the sets go."""
        return self.run.path / DATASETS if self.settings.store is None else Path(self.settings.store)

    def _record(self, kind: str, choice: Choice) -> Trajectories:
        rows = self.settings.rows
        if kind == "random":
            return self._play(kind, uniform_policy(len(self.info.action_low)), rows)
        replays = {"medium-replay": choice.medium_step, "full-replay": self.settings.training.steps}
        if kind in replays:
            return from_episodes(self.info, read_experience(self.training, replays[kind]))
        parts = {
            "medium": [("medium", choice.medium_step, rows)],
            "expert": [("expert", choice.expert_step, rows)],
            "medium-expert": [
                ("medium", choice.medium_step, rows // 2),
                ("expert", choice.expert_step, rows - rows // 2),
            ],
        }[kind]
        return join(self.info, [self._play(name, self._actor(step), count) for name, step, count in parts])

    def _play(self, name: str, policy: EpisodePolicy, rows: int) -> Trajectories:
        """Play sampled episodes until there are enough rows, and cut the last one."""
        episodes: list[VectorEpisode] = []
        with Progress(f"record {name}", rows, unit="rows") as progress:
            while (total := sum(map(len, episodes))) < rows:
                episodes.append(self._episode(policy, name, len(episodes), sampled=True))
                progress.advance(min(len(episodes[-1]), rows - total))
        return from_episodes(self.info, episodes).head(rows)

    def _mean_return(self, policy: EpisodePolicy, name: str, *, sampled: bool) -> float:
        returns = []
        with Progress(f"measure {name}", self.settings.reference_episodes, unit="episodes") as progress:
            for number in range(self.settings.reference_episodes):
                returns.append(self._episode(policy, name, number, sampled=sampled).reward.sum(dtype=np.float64))
                progress.advance()
        return float(np.mean(returns))

    def _episode(self, policy: EpisodePolicy, name: str, number: int, *, sampled: bool) -> VectorEpisode:
        """Play episode ``number`` of a name: the same whatever else is played."""
        seed = stream_seed(self.settings.seed, "make-dataset", name, number) % 2**31
        noise = stream(self.settings.seed, "make-dataset", name, "action", number) if sampled else None
        return play_episode(self.env, self.info, policy, seed=seed, generator=noise)

    def _actor(self, step: int) -> EpisodePolicy:
        return memoryless(BehaviourActor.load(actor_folder(self.training, step)))

    def _describe(self, kind: str, identity: str, choice: Choice) -> DatasetInfo:
        steps = {"medium": choice.medium_step, "expert": choice.expert_step}
        actors = {name: step for name, step in steps.items() if name in kind.split("-")}
        provenance = {
            "command": "make-dataset",
            "config_hash": self.run.config_hash,
            "kind": kind,
            "seed": self.settings.seed,
            "training": asdict(self.settings.training),
            "actors": {name: artefact_hash(actor_folder(self.training, step)) for name, step in actors.items()},
            "actor_steps": actors,
            "code": code_version(),
            "packages": package_versions(),
        }
        better = choice.expert > choice.random
        scale = {"ref_min": choice.random, "ref_max": choice.expert} if better else {}
        return replace(self.info, dataset_id=identity, provenance=provenance, **scale)

    def _claim(self, folder: Path) -> None:
        """Refuse to write over a dataset that this run did not write."""
        if (data := data_folder(folder)) is None:
            return
        found = read_json(data / METADATA, error=ArtefactError).get(OWN)
        if not isinstance(found, Mapping) or found.get("config_hash") != self.run.config_hash:
            raise SettingError(
                f"version: {folder} holds another dataset; give version={self.settings.version + 1} or another store"
            )


def require_rows(settings: MakeDatasetSettings, env: gymnasium.Env[Any, Any]) -> None:
    """Refuse more rows than memory or disk can hold; SettingError, naming how much they take."""
    observed, acted = (math.prod(space.shape or ()) for space in (env.observation_space, env.action_space))
    row = 4 * (observed + acted)
    replayed = 4 * (2 * observed + acted + 2)  # both observations, reward and end
    rows, steps = settings.rows, settings.training.steps
    require_memory(rows * row, f"rows={rows} of {row} bytes each")
    require_memory(steps * replayed, f"training.steps={steps}, of which the replay keeps {replayed} bytes each")
    store = Path(settings.store or settings.run_dir)
    kinds = [kind for kind in settings.kinds if not (store / DATASETS / dataset_id(settings, kind)).exists()]
    require_disk(store, rows * row * len(kinds), f"rows={rows} for each of kinds={kinds}")


def dataset_id(settings: MakeDatasetSettings, kind: str) -> str:
    """Return the Minari id of a set, for example ``worldrl/hopper-v5/medium-v0``; a module before the id is left out."""
    name = re.sub(r"[^-\w]", "-", settings.env.rpartition(":")[2].lower())
    return f"{settings.namespace}/{name}/{kind}-v{settings.version}"


def first_medium(actors: Sequence[Evaluated], low: float, high: float) -> Evaluated:
    """Return the first actor whose return reaches ``low + (high - low) / 3``; the best where none does.

    None can, only where the best actor's return on new episodes is below a third of the one it was chosen by.
    """
    least = low + (high - low) / 3
    return next((one for one in actors if one.value >= least), max(actors, key=lambda one: one.value))


def summarise(data: Trajectories) -> dict[str, Any]:
    """Count rows and episodes, and average the returns of those that were not cut off."""
    lengths = np.diff(data.bounds())
    whole = data.terminated[data.bounds()[1:] - 1] | (lengths == data.info.max_episode_steps)
    returns = data.returns()[whole]
    return {
        "rows": len(data),
        "episodes": data.episodes,
        "whole_episodes": int(whole.sum()),
        "terminated": int(data.terminated.sum()),
        "mean_return": float(returns.mean()) if whole.any() else None,
        "min_return": float(returns.min()) if whole.any() else None,
        "max_return": float(returns.max()) if whole.any() else None,
    }


def show(metrics: Mapping[str, Any]) -> None:
    """Print the closing table."""
    low, high = metrics["random"], metrics["expert"]
    about = f"score 0 is {low:.4g} (random), 100 is {high:.4g} (expert)"
    if not high > low:
        about = f"no reference scores: random actions return {low:.4g}, the best actor {high:.4g}"
    table = Table(title=f"datasets of {metrics['env']}", caption=about)
    for heading in ("id", "rows", "episodes", "mean return", "folder"):
        table.add_column(heading, justify="left" if heading in ("id", "folder") else "right", overflow="fold")
    for entry in metrics["sets"].values():
        mean = "" if entry["mean_return"] is None else f"{entry['mean_return']:.4g}"
        table.add_row(entry["id"], str(entry["rows"]), str(entry["episodes"]), mean, entry["folder"])
    console().print(table)


def _gate(choice: Choice, gates: str) -> None:
    if choice.expert > choice.random:
        return
    text = (
        f"the best actor returns {choice.expert:.4g}, random actions {choice.random:.4g}: nothing was learned; "
        "give more training.steps in another run_dir, or gates=warn to write sets without reference scores"
    )
    if gates == "stop":
        raise GateError(text)
    console().print(text)
