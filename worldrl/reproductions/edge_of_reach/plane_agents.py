"""``edge-of-reach-2d``: a perfect model makes model-based offline RL fail.

Sims et al., "The Edge-of-Reach Problem in Offline Model-Based Reinforcement Learning" (2024). Rollouts take k steps in the
true dynamics. States that are reached only at step k are bootstrapped from and never corrected; their errors spread
backwards and grow. Three agents learn from the same data:

- ``base``: SAC on imagined rollouts. A method that subtracts the model's uncertainty equals it number for number, since
  the true dynamics have none;
- ``oracle-patch``: base with the true Q* as target at the edge of reach, and nowhere else;
- ``ravl``: many diverse critics, pessimistic where they disagree, and no penalty.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldrl.core.rng import initial_weights, stream
from worldrl.core.statistics.intervals import auroc
from worldrl.core.storage.log import Progress
from worldrl.core.training.loop import Training, repeat
from worldrl.core.transitions import Transitions, concat
from worldrl.evaluation.report.model import Filmstrip, Table
from worldrl.evaluation.report.words import number
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.branches import BranchConfig, Branches
from worldrl.methods.offline.buffer import TransitionBuffer
from worldrl.methods.offline.ravl import Ravl, RavlConfig
from worldrl.methods.offline.sac import Sac, SacConfig, effective_penalty
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.edge_of_reach.parts import FLOOR, PatchedSac, common_settings
from worldrl.reproductions.edge_of_reach.plane import Plane, PlaneWorld, picture
from worldrl.reproductions.findings import Claim, Findings, Results, across_seeds, column, over_seeds
from worldrl.reproductions.resume_state import LoopState
from worldrl.settings import non_negative

Act = Callable[[Tensor], Tensor]
METHODS = ("base", "oracle-patch", "ravl")
SCORE = "Score: interquartile mean [95 %], lowest to highest seed"
ROWS, STARTS_SHOWN, STATES_ASKED = 2000, 32, 4000


@dataclass(frozen=True)
class EdgeSettings:
    """Settings of the plane and the agents."""

    seeds: int = 5
    updates: int = 100_000
    refresh: int = 1000  # updates between two generations of rollouts
    starts: int = 2000  # rollouts per generation
    generations: int = 5  # number of generations in the buffer
    horizon: int = 5  # k
    discount: float = 0.95
    batch: int = 256  # rows per update, of which `real_ratio` are recorded
    real_ratio: float = 0.05
    hidden: int = 256  # width of the two hidden layers of actor and critics
    rate: float = 3e-4  # learning rate of everything
    polyak: float = 0.005
    # Observed numbers besides the position, 0 on the ledge; with 0 of them critics extrapolate into the cliff.
    novelties: int = 16
    critics: int = 10  # of RAVL
    # Η of RAVL. In a plane of actions ten gradients cannot diverge, so η > 0 lowers values within reach too.
    diversity: float = 0.0
    evaluations: int = 20  # points of the curves
    steps: int = 50  # of an evaluated episode

    def __post_init__(self) -> None:
        non_negative("change.novelties", self.novelties)

    @property
    def plane(self) -> Plane:
        """The environment."""
        return Plane(horizon=self.horizon, discount=self.discount, novelties=self.novelties)

    @property
    def largest_q(self) -> float:
        """Bound on all returns: r_max / (1 - γ) with r_max = 1."""
        return 1 / (1 - self.discount)


SETTINGS: Mapping[str, EdgeSettings] = {
    "paper": EdgeSettings(),
    "full": EdgeSettings(
        updates=10_000, refresh=20, starts=100, generations=20, hidden=128, rate=5e-4, polyak=0.02, evaluations=10
    ),
    "quick": EdgeSettings(
        updates=5000, refresh=20, starts=100, generations=20, hidden=64, rate=1e-3, polyak=0.05, evaluations=10
    ),
    "tiny": EdgeSettings(
        seeds=2,
        updates=4,
        refresh=2,
        starts=8,
        horizon=3,
        discount=0.5,
        batch=40,
        hidden=8,
        critics=3,
        evaluations=2,
        steps=3,
    ),
}


def make_agent(settings: EdgeSettings, method: str, facts: Facts) -> Sac:
    """Make one method's agent; all but RAVL have two critics."""
    common: dict[str, Any] = common_settings(settings) | {"temperature": 0.1}
    if method == "ravl":
        return Ravl(RavlConfig(critics=settings.critics, diversity=settings.diversity, **common), facts)
    config = SacConfig(critics=2, **common)
    return PatchedSac(config, facts, settings.plane) if method == "oracle-patch" else Sac(config, facts)


def run(settings: EdgeSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Train one agent and evaluate it at intervals; ``folder`` holds a checkpoint of each evaluation."""
    plane = settings.plane
    data = plane.data(ROWS, generator=stream(cell.seed, "plane", "data"))
    with initial_weights(cell.seed, "plane", "agent"):
        agent = make_agent(settings, cell.method, Facts(data.obs.mean(0), data.obs.std(0), 2))
    branches = Branches(PlaneWorld(plane, data.obs[:, :2]), ROWS, BranchConfig(settings.starts, settings.horizon))
    buffer = TransitionBuffer(settings.starts * settings.horizon * settings.generations)
    generator = stream(cell.seed, "plane", "training")
    _, best = play(settings, data.obs[:STARTS_SHOWN, :2], plane.best_action)
    real = int(settings.batch * settings.real_ratio)
    state = LoopState(generator, {"agent": agent, "buffer": buffer}, {"looks": [look(settings, agent, data, best, 0)]})

    def due(update: int, _: int = 0) -> bool:
        return (
            update * settings.evaluations // settings.updates > (update - 1) * settings.evaluations // settings.updates
        )

    def take(update: int, progress: Progress) -> int:
        if update % settings.refresh == 0:
            buffer.add(branches.generate(agent, generator=generator)[0])
        recorded = data.select(torch.randint(ROWS, (real,), generator=generator))
        imagined = buffer.sample(settings.batch - real, generator=generator)
        agent.update(concat([recorded, imagined]), generator=generator)
        if due(update + 1):
            state.seen["looks"].append(look(settings, agent, data, best, update + 1))
        return update + 1

    repeat(Training(f"{cell.method} {cell.seed}", folder / "checkpoints", extra=state), take, settings.updates, due=due)
    looks = state.seen["looks"]
    curves = {key: [found[key] for found in looks] for key in looks[0]}
    patched = agent.patched if isinstance(agent, PatchedSac) else 0.0
    return {**curves, "patched": patched, "penalty_auroc": penalty_auroc(settings, agent, cell.seed)}


@torch.no_grad()
def look(settings: EdgeSettings, agent: Sac, data: Transitions, best: Tensor, update: int) -> dict[str, Any]:
    """Measure the score (relative to the returns ``best``), predicted values, and the greedy policy's path."""
    path, total = play(settings, data.obs[:STARTS_SHOWN, :2], greedy(settings, agent))
    q = agent.value(data.obs)
    kept = path[:: max(1, settings.steps // settings.horizon)]
    return {
        "update": update,
        "score": float(total.mean() / best.mean()),
        "log10_q": math.log10(max(float(q.mean()), FLOOR)),
        "log10_earned": math.log10(max(earned(settings, data.obs[:STARTS_SHOWN, :2], agent), FLOOR)),
        "path": kept.reshape(-1, 2).mul(1000).round().div(1000).tolist(),
    }


def greedy(settings: EdgeSettings, agent: Sac) -> Act:
    """Return the agent's most likely actions as a function of states."""
    return lambda state: agent.act(settings.plane.observe(state), generator=None)


def earned(settings: EdgeSettings, starts: Tensor, agent: Sac) -> float:
    """Return the greedy policy's true discounted return, until a reward counts less than 1 %."""
    plane, state, act, total, weight = settings.plane, starts, greedy(settings, agent), 0.0, 1.0
    while weight > 0.01:
        before, state = state, plane.move(state, act(state))
        total, weight = total + weight * float(plane.reward(before, state).mean()), weight * settings.discount
    return total


def play(settings: EdgeSettings, starts: Tensor, act: Act) -> tuple[Tensor, Tensor]:
    """Play episodes; return the states after each step ``[steps, B, 2]`` and the returns ``[B]``."""
    state, states, total = starts, [], torch.zeros(len(starts))
    for _ in range(settings.steps):
        before, state = state, settings.plane.move(state, act(state))
        total = total + settings.plane.reward(before, state)
        states.append(state)
    return torch.stack(states), total


@torch.no_grad()
def penalty_auroc(settings: EdgeSettings, agent: Sac, seed: int) -> float:
    """Return the AUROC of mean Q - min Q for states at the edge among reachable states."""
    states = settings.plane.size * (2 * torch.rand(STATES_ASKED, 2, generator=stream(seed, "plane", "asked")) - 1)
    states = states[settings.plane.reachable(states, settings.horizon)]
    edge = settings.plane.at_edge(states, settings.horizon)
    obs = settings.plane.observe(states)
    penalty = effective_penalty(agent.critic(obs, agent.act(obs, generator=None)))
    return auroc(penalty[edge].numpy(), penalty[~edge].numpy())


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: EdgeSettings, results: Results) -> Findings:
    """Compare the methods by their last evaluation."""
    score = {m: column(results, m, "score")[:, -1] for m in METHODS}
    above = {m: column(results, m, "log10_q")[:, -1] - math.log10(settings.largest_q) for m in METHODS}
    separation = column(results, "ravl", "penalty_auroc") - 0.5
    claims = [
        Claim("base's values grow beyond what any policy can earn", "log10 (Q / largest possible)", above["base"]),
        Claim("RAVL's values do not", "log10 (largest possible / Q)", -above["ravl"]),
        Claim(
            "RAVL earns more than base, and than every method whose penalty is the model's uncertainty",
            "score, difference",
            score["ravl"] - score["base"],
        ),
        Claim("the true Q at the edge alone repairs base", "score, difference", score["oracle-patch"] - score["base"]),
        Claim("RAVL's effective penalty tells edge-of-reach states", "AUROC less 0.5", separation),
    ]
    return Findings(claims, [methods_table(results)], curves(results), notes(settings), filmstrips(settings, results))


def methods_table(results: Results) -> Table:
    """Last evaluation of every method over seeds."""
    rows = []
    for method in METHODS:
        means = [number(float(column(results, method, key)[:, -1].mean())) for key in ("log10_q", "log10_earned")]
        auc, patched = (column(results, method, key).mean() for key in ("penalty_auroc", "patched"))
        score = [found["score"][-1] for found in results[method]]
        rows.append((method, over_seeds(score), *means, f"{auc:.3f}", f"{patched:.2%}"))
    headers = ("Method", SCORE, "log10 Q", "log10 earned", "AUROC of mean Q - min Q", "Targets patched")
    note = "Score: return over the best policy's from the same states. Q: the least critic's, which targets use."
    return Table("At the end of training", headers, rows, note)


def curves(results: Results) -> list[Any]:
    """Score and value over training."""
    x = results["base"][0]["update"]

    def chart(title: str, label: str, key: str) -> Any:
        return across_seeds(title, "update", label, x, {m: [found[key] for found in results[m]] for m in METHODS})

    return [
        chart("Score", "return / best policy's return", "score"),
        chart("Predicted value at the data", "log10 of the mean Q(s, π(s))", "log10_q"),
    ]


def filmstrips(settings: EdgeSettings, results: Results) -> list[Filmstrip]:
    """Paths of the first seed's greedy policies, over training."""
    updates = results["base"][0]["update"]
    shown = np.unique(np.linspace(0, len(updates) - 1, 6).round().astype(int))
    rows = {m: np.stack([picture(settings.plane, results[m][0]["path"][i]) for i in shown]) for m in METHODS}
    caption = (
        "Grey: reward. Blue: the start. Yellow: states at the edge of reach. Red: states that the greedy policy "
        "passes from the data on."
    )
    return [Filmstrip("Where the policies go, first seed", caption, rows, [f"update {updates[i]}" for i in shown])]


def notes(settings: EdgeSettings) -> list[str]:
    """Notes on the method."""
    return [
        "In true dynamics the uncertainty is exactly 0, so a method that subtracts it is base, number for number.",
        f"The largest possible value is 1 / (1 - γ) = {settings.largest_q:g}; its logarithm is {math.log10(settings.largest_q):g}.",
        "The environment is a stand-in: the paper's own is published as an image only.",
        f"Beside their position agents see {settings.novelties} numbers that are 0 on the ledge. RAVL: {settings.critics} critics, "
        f"η = {settings.diversity:g}.",
    ]
