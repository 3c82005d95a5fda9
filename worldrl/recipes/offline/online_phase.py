"""From offline to online: a pre-trained agent continues to learn in its data's environment.

As in WSRL, the frozen policy fills a buffer, then updates follow each step, without recorded rows. Options: episodes
that begin at simulator states of the data, and exploration by COPlanner towards uncertain states, after which the
ensemble is refitted and used for imagination. CQL's agent continues as plain SAC with the same networks, as in the
paper.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from worldrl.core.errors import SettingError, require_value
from worldrl.core.interfaces import Logs
from worldrl.core.storage.log import MetricLog
from worldrl.core.transitions import Transitions
from worldrl.data.offline.trajectories import Trajectories
from worldrl.methods.offline.agent import Agent
from worldrl.methods.offline.bc import Bc
from worldrl.methods.offline.branches import BranchConfig, Branches
from worldrl.methods.offline.combo import Combo
from worldrl.methods.offline.cql import Cql
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.methods.offline.online.coplanner import Planner, UpMpcConfig
from worldrl.methods.offline.online.online_world import OnlineWorld
from worldrl.methods.offline.online.snapshot_resets import SnapshotResets
from worldrl.methods.offline.online.wsrl import FineTuned, WsrlConfig, fine_tune
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.methods.offline.td3_bc import Td3Bc
from worldrl.methods.offline.updates import GRAPHED
from worldrl.rollout.vector.episodes import dataset_environment
from worldrl.settings import one_of

RESETS = ("own", "snapshots")
USES = ("none", "rollouts", "exploration", "both")
LAST_EPISODES = 10  # Episodes at the end of the online phase whose mean return is reported


@dataclass(frozen=True)
class OnlineConfig(WsrlConfig):
    """Settings of the online phase."""

    steps: int = 0  # environment steps in all, the warm-up's among them; 0 for no online phase (the paper: 500,000).
    resets: str = "own"  # where episodes begin: own (the environment's resets) or snapshots (states of the dataset).
    # steps between two refits of the ensemble, each followed by a generation of rollouts (imagining.*), where
    # planner.use explores; 250 is MBPO's.
    refit_every: int = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("online.resets", self.resets, RESETS)
        require_value(self.refit_every >= 1, "online.refit_every", "at least 1", self.refit_every)


@dataclass(frozen=True)
class PlannerConfig(UpMpcConfig):
    """Settings of COPlanner."""

    # where plans replace the policy's own actions: none, rollouts (avoiding uncertainty), exploration (seeking it, in
    # the online phase) or both.
    use: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("planner.use", self.use, USES)

    @property
    def rolls_out(self) -> bool:
        """Whether imagined rollouts are planned."""
        return self.use in ("rollouts", "both")

    @property
    def explores(self) -> bool:
        """Whether the online phase is planned."""
        return self.use in ("exploration", "both")


def check_online(settings: Any, agent_class: type[Agent]) -> None:
    """SettingError for agents that cannot learn from rows alone, and planners without an ensemble."""
    online, planner = settings.online, settings.planner
    if planner.use != "none" and settings.world != "ensemble":
        raise SettingError(f"planner.use={planner.use} plans in an ensemble; give world=ensemble, not {settings.world}")
    if planner.explores and not online.steps:
        raise SettingError(f"planner.use={planner.use} explores in the online phase; give online.steps=N")
    if planner.use != "none" and issubclass(agent_class, Bc | Td3Bc):
        raise SettingError(
            f"planner.use={planner.use}: {agent_class.name} proposes one action, so there is nothing to choose from; "
            "choose an agent that samples, for example sac or iql"
        )
    if not online.steps:
        return
    if settings.training.updates == GRAPHED:
        raise SettingError(
            "training.updates=graphed: a graph is of one update of one batch, and online.steps takes others; give "
            "training.updates=compiled, or no online.steps"
        )
    if settings.world == "latent":
        raise SettingError("online.steps: an agent of latents cannot be played in the simulator by this command")
    if agent_class.needs or issubclass(agent_class, Bc | Combo | Neubay):
        raise SettingError(
            f"online.steps: {agent_class.name} needs more than the rows of its own episodes to learn; choose sac, cql, edac, "
            "ro2o, ravl, td3_bc, iql or f_dvl"
        )


def check_snapshots(settings: Any, data: Trajectories) -> None:
    """Refuse snapshots of a dataset without simulator states before hours of training; SettingError."""
    snapshots = bool(settings.online.steps) and settings.online.resets == "snapshots"
    if snapshots and (data.qpos is None or data.qvel is None):
        raise SettingError(
            f"online.resets=snapshots: {data.info.source} holds no simulator states (qpos, qvel); make one with worldrl "
            "make-dataset, or give online.resets=own"
        )


class PlannedBranches:
    """Branched rollouts whose actions COPlanner chooses, avoiding uncertainty."""

    def __init__(self, branches: Branches, config: PlannerConfig) -> None:
        self.branches, self.config = branches, config

    def generate(self, agent: Any, *, generator: torch.Generator) -> tuple[Transitions, Logs]:
        """Imagine one generation."""
        planner = Planner(self.branches.world, agent, self.config, explores=False)
        return self.branches.generate(planner, generator=generator)


def rollouts_in(world: Any, rows: int, imagining: Imagining, planner: PlannerConfig) -> Branches | PlannedBranches:
    """Branched rollouts in a world with ``rows`` starts, planned where the planner rolls out."""
    config = BranchConfig(starts=imagining.rollouts, horizon=imagining.horizon, penalty=imagining.penalty)
    branches = Branches(world, rows, config)
    return PlannedBranches(branches, planner) if planner.rolls_out else branches


def online_agent(agent: Agent) -> Agent:
    """Agent that continues: CQL's networks in plain SAC, any other itself; with a constant actor rate, since the offline cosine ends at 0."""
    if hasattr(agent.config, "actor_cosine"):
        agent.config = replace(agent.config, actor_cosine=False)
    if not isinstance(agent, Cql):
        return agent
    config = SacConfig(**{item.name: getattr(agent.config, item.name) for item in fields(SacConfig)})
    plain = Sac(config, agent.facts).to(agent.device)
    for name, module in plain.modules.items():
        module.load_state_dict(agent.modules[name].state_dict())
    return plain


def online_phase(
    settings: Any, agent: Agent, data: Trajectories, world: Any, *, folder: Path, log: MetricLog
) -> tuple[Agent, dict[str, Any]]:
    """Continue an agent's training in its data's environment, resuming from ``folder``; a planner needs the ``world``.

    Returns the agent that continued, and the report. SettingError for snapshots of a dataset without simulator states.
    """
    env: gymnasium.Env[Any, Any] = dataset_environment(data.info)
    if settings.online.resets == "snapshots":
        env = SnapshotResets(env, data, settings.snapshots, seed=settings.seed)
    learner = online_agent(agent)
    planner, explorer, along = settings.planner, None, None
    if planner.explores:
        explorer = Planner(world, learner, planner, explores=True)
        along = OnlineWorld(
            world,
            data.transitions().to(world.ensemble.device),
            settings.imagining,
            settings.ensemble_training,
            refit_every=settings.online.refit_every,
            seed=settings.seed,
            rollouts=lambda world, rows: rollouts_in(world, rows, settings.imagining, planner),
        )
    found = fine_tune(
        "online",
        learner,
        env,
        data.info,
        settings.online,
        seed=settings.seed,
        folder=folder,
        log=log,
        explorer=explorer,
        world=along,
    )
    return learner, online_report(found, settings.online.steps)


def online_report(found: FineTuned, steps: int) -> dict[str, Any]:
    """JSON-ready summary of an online phase; episodes from snapshots are shorter, and so are their returns."""
    head, tail = found.returns[:LAST_EPISODES], found.returns[-LAST_EPISODES:]
    return {
        "steps": steps,
        "episodes": len(found.returns),
        "updates": found.updates,
        "first_returns": float(np.mean(head)) if head else None,
        "last_returns": float(np.mean(tail)) if tail else None,
    }
