"""Behaviour policies of self-made datasets: Stable-Baselines3's SAC, trained in stretches that resume bit for bit.

SAC: T. Haarnoja et al., ICML 2018 and arXiv 1812.05905; the update is Stable-Baselines3's own. Its save file contains a
pickle, so it is not used. A checkpoint of worldrl holds weights, targets, optimizers and temperature. The replay buffer
is the recorded experience, one safetensors file per stretch. Every stretch draws from streams named by its number and
begins with a reset, so an episode is truncated, not terminated, at its border.

    folder/
      actors/step-00010000/       the actor after so many steps, with its deterministic return
      experience/step-00010000/   the rows of the stretch that ended there, with simulator states
      checkpoints/                the newest two states of the whole learner
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.extras import require
from worldrl.core.rng import lent_to_torch, numpy_stream, stream_seed
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.loop import Training, every, repeat
from worldrl.data.offline.trajectories import VectorEpisode
from worldrl.methods.offline.datasets.behaviour_actor import ACTOR, BehaviourActor
from worldrl.methods.offline.datasets.sb3_replay import recorded_replay
from worldrl.rollout.vector.episodes import StateInfo, environment_info, make_environment, memoryless, play_episode

EXPERIENCE = "sac-experience"
SERIES = "sac"


@dataclass
class BehaviourSac:
    """Settings of :func:`train_behaviour`; most defaults are Stable-Baselines3's."""

    steps: int = 300_000  # environment steps, each followed by one update.
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers of actor and critics.
    learning_rate: float = 3e-4  # of all three optimizers (Adam).
    batch_size: int = 256  # rows per update.
    gamma: float = 0.99  # discount.
    tau: float = 0.005  # rate of the targets per update.
    learning_starts: int = 10_000  # steps of uniform actions before the first update.
    checkpoint_every: int = 10_000  # steps per stretch; the actor at the end of each is stored and evaluated.
    evaluation_episodes: int = 10  # deterministic episodes per evaluation.

    def __post_init__(self) -> None:
        self.hidden = tuple(self.hidden)
        require_at_least_one(self, ("steps", "batch_size", "checkpoint_every", "evaluation_episodes"), of="training")
        for name in ("gamma", "tau"):
            if not 0 < getattr(self, name) <= 1:
                raise SettingError(f"training.{name}: must be above 0 and at most 1, got {getattr(self, name)}")
        if not self.learning_rate > 0 or self.learning_starts < 0 or not self.hidden or min(self.hidden) < 1:
            raise SettingError("training: learning_rate and hidden must be positive, learning_starts not negative")


@dataclass(frozen=True)
class Evaluated:
    """A stored actor: its step, and its mean deterministic return."""

    step: int
    value: float


def train_behaviour(
    folder: Path,
    env_id: str,
    config: BehaviourSac,
    *,
    seed: int,
    max_episode_steps: int | None = None,
    log: MetricLog | None = None,
) -> list[Evaluated]:
    """Train SAC, resuming from ``folder``; return every stored actor, oldest first.

    Raises SettingError: no registered environment of vectors; ArtefactError: a stored part is damaged or of other
    settings; MissingExtraError: Stable-Baselines3 is not installed.
    """
    learner = _Learner(folder, env_id, config, seed, max_episode_steps)

    def take(_: int, progress: Progress) -> int:
        learner.stretch(progress)
        learner.store(Evaluated(learner.step, learner.evaluate()))
        if log is not None:
            log.write(SERIES, learner.step, {"return": learner.kept[-1].value})
        return learner.step

    repeat(learner.training(log), take, config.steps, due=every(1), uncut="stretch")
    learner.close()
    return learner.kept


def read_experience(folder: Path, until: int) -> list[VectorEpisode]:
    """Return episodes up to step ``until``, in the environment's units; ArtefactError: a stretch is missing."""
    episodes: list[VectorEpisode] = []
    for path in _stretches(folder, until):
        stretch = read_artefact(path, kind=EXPERIENCE)
        ends = stretch.tensors["ended"].numpy() > 0
        ends[-1] = True  # the next stretch begins with a reset
        begin = 0
        for end in np.flatnonzero(ends) + 1:
            seed = stretch.config["seed"] if begin == 0 else None
            episodes.append(_episode({name: t[begin:end] for name, t in stretch.tensors.items()}, seed))
            begin = end
    return episodes


def actor_folder(folder: Path, step: int) -> Path:
    """Return the folder of the actor after ``step`` steps."""
    return folder / "actors" / _name(step)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _stretches(folder: Path, until: int) -> list[Path]:
    paths = sorted((folder / "experience").glob("step-*"))
    return [path for path in paths if int(path.name.removeprefix("step-")) <= until]


def _episode(columns: Mapping[str, Tensor], seed: int | None) -> VectorEpisode:
    last = {name: columns[name][-1:].numpy() for name in ("next_obs", "ended", "timeout")}
    terminated = bool(last["ended"][0] > 0 and not last["timeout"][0] > 0)
    obs = np.concatenate([columns["obs"].numpy(), last["next_obs"]]).astype(np.float32)
    states = {name: columns[name].numpy() if name in columns else None for name in ("qpos", "qvel")}
    return VectorEpisode(
        obs, columns["executed"].numpy(), columns["reward"].numpy(), terminated, not terminated, **states, seed=seed
    )


class _Learner:
    def __init__(
        self, folder: Path, env_id: str, config: BehaviourSac, seed: int, max_episode_steps: int | None = None
    ) -> None:
        sb3 = require("stable_baselines3", extra="sb3")
        logger = require("stable_baselines3.common.logger", extra="sb3").Logger
        self.folder, self.env_id, self.config, self.seed = folder, env_id, config, seed
        self.kept: list[Evaluated] = []
        self.env = make_environment(env_id, max_episode_steps=max_episode_steps)
        self.info = environment_info(self.env, env_id)
        with lent_to_torch(seed, "behaviour-sac", "weights"):
            self.sac: Any = sb3.SAC(
                "MlpPolicy",
                StateInfo(make_environment(env_id, max_episode_steps=max_episode_steps)),
                learning_rate=config.learning_rate,
                buffer_size=config.steps,
                learning_starts=config.learning_starts,
                batch_size=config.batch_size,
                tau=config.tau,
                gamma=config.gamma,
                replay_buffer_class=recorded_replay(),
                policy_kwargs={"net_arch": list(config.hidden)},
                device="cpu",
            )
        self.sac.set_logger(logger(folder=None, output_formats=[]))

    @property
    def step(self) -> int:
        return self.sac.num_timesteps

    def stretch(self, progress: Progress) -> None:
        """Train up to the next border; a function of the state before and of the stretch's number alone."""
        steps = min(self.config.checkpoint_every, self.config.steps - self.step)

        def advance(local: dict[str, Any], world: dict[str, Any]) -> bool:
            progress.advance()
            return True

        self.sac._last_obs = None  # the next call of learn then resets the environment
        self.sac.env.seed(self._seed("environment"))
        self.sac.action_space.seed(self._seed("uniform actions"))
        self.sac.replay_buffer.generator = numpy_stream(self.seed, "behaviour-sac", "batches", self.step)
        with lent_to_torch(self.seed, "behaviour-sac", "noise", self.step):
            self.sac.learn(steps, callback=advance, log_interval=None, reset_num_timesteps=False)

    def evaluate(self) -> float:
        policy = memoryless(BehaviourActor(self._actor(), {}))
        seeds = [stream_seed(self.seed, "behaviour-sac", "evaluation", n) % 2**31 for n in range(self._episodes)]
        returns = [play_episode(self.env, self.info, policy, seed=s, generator=None).reward.sum() for s in seeds]
        return float(np.mean(returns))

    def store(self, evaluated: Evaluated) -> None:
        """Write the stretch's rows and its actor; without the checkpoint that follows neither is used."""
        begin = self.kept[-1].step if self.kept else 0
        self.kept.append(evaluated)
        rows = self.sac.replay_buffer.newest(self.step - begin)
        seed = stream_seed(self.seed, "behaviour-sac", "environment", begin) % 2**31
        path = self.folder / "experience" / _name(self.step)
        write_artefact(path, kind=EXPERIENCE, config={"begin": begin, "seed": seed}, tensors=rows)
        about = {"env": self.env_id, "step": self.step, "return": evaluated.value, "training": asdict(self.config)}
        write_artefact(actor_folder(self.folder, self.step), kind=ACTOR, config=about, tensors=self._actor())

    def state_dict(self) -> dict[str, Any]:
        kept = [[one.step, one.value] for one in self.kept]
        return {"log_temperature": self.sac.log_ent_coef.detach(), "kept": kept}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.kept = [Evaluated(int(step), float(value)) for step, value in state_dict["kept"]]
        with torch.no_grad():
            self.sac.log_ent_coef.copy_(state_dict["log_temperature"])
        self.sac.num_timesteps = self.kept[-1].step
        for path in _stretches(self.folder, self.step):
            self.sac.replay_buffer.refill(read_artefact(path, kind=EXPERIENCE).tensors)

    def close(self) -> None:
        self.env.close()
        self.sac.env.close()

    @property
    def _episodes(self) -> int:
        return self.config.evaluation_episodes

    def _seed(self, what: str) -> int:
        return stream_seed(self.seed, "behaviour-sac", what, self.step) % 2**31

    def _actor(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.sac.actor.state_dict().items()}

    def training(self, log: MetricLog | None) -> Training:
        optimizers = {
            "actor": self.sac.actor.optimizer,
            "critic": self.sac.critic.optimizer,
            "temperature": self.sac.ent_coef_optimizer,
        }
        modules = {"policy": self.sac.policy}
        return Training(SERIES, self.folder / "checkpoints", log, modules, optimizers, self, first_line=1)
