"""``neubay-bandit``: the effect of a penalty on uncertainty on an agent that could explore.

Ni et al., "Long-Horizon Model-Based Offline RL Without Conservatism" (2025). Two Bernoulli arms, 100 pulls. The data
are 10 episodes of arm 0 alone, which pays half of the time. A recurrent agent is trained in an ensemble of reward models,
one member per episode, once with the plain rewards ("neutral": maximise the expected return over the posterior) and once
with ``r - λ U`` ("penalised", U the members' disagreement). Both then play real bandits whose arm 1 pays with
probabilities from 0.01 to 0.99. Every seed draws data, ensemble and agent anew; its two methods share data and ensemble.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.log import Progress
from worldrl.core.training.loop import Training, repeat
from worldrl.evaluation.report.model import Table
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.packed_sequences import PackedSequenceBuffer, segment
from worldrl.methods.offline.neubay.recurrent_q import RecurrentQAgent, RecurrentQConfig
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.findings import Claim, Findings, Results, across_seeds, column
from worldrl.reproductions.neubay.bandit_world import (
    ElitePredictions,
    RewardEnsemble,
    RewardTraining,
    elite_predictions,
    fit_rewards,
)
from worldrl.reproductions.resume_state import LoopState

ARMS, HORIZON, KNOWN, EPISODES = 2, 100, 0.5, 10
GRID = (0.01, 0.15, 0.3, 0.45, 0.55, 0.7, 0.85, 0.99)
"""Success probabilities of arm 1 in the test; arm 0 pays with ``KNOWN``."""
BETTER, WORSE = (0.7, 0.85, 0.99), (0.01, 0.15, 0.3)
"""Probabilities at which arm 1 is clearly better or worse; 0.45 and 0.55 are too near 0.5 for an episode's pulls."""
METHODS = ("neutral", "penalised")
OBS = 1  # The observation is the last raw reward; a bandit has no other state
CHECKPOINTS = 10  # Checkpoints of a training, at ends of generations


@dataclass(frozen=True)
class BanditSettings:
    """Settings of the bandit, the paper's by default."""

    seeds: int = 5
    updates: int = 20_000
    updates_per_step: float = 0.02  # gradient steps per imagined pull
    batch: int = 1000  # packed rows per update
    rollouts: int = 100  # episodes imagined at once, one per member
    buffer: int = 1_000_000  # capacity, packed rows
    width: int = 256  # features of the memory
    states: int = 128  # complex states of each memory layer
    hidden: int = 256  # width of the head
    encoder_lr: float = 3e-6  # learning rate up to the memory
    head_lr: float = 1e-4  # learning rate after it
    tau: float = 0.005  # of the target network
    epsilon_end: float = 0.1  # random share of pulls after `epsilon_share` of the training; it falls linearly from 1
    epsilon_share: float = 0.1
    penalty: float = 2.5  # λ of the penalised agent; the paper's are 0.1, 0.5 and 2.5
    # 1 subtracts the data's mean from training rewards, 0 does not. The rank of policies is the same, since every
    # episode has 100 pulls. Values are then near 0 instead of 50, where one pull is a hundredth of them.
    centre: int = 0
    # Largest modulus of the memory's eigenvalues at the start; the paper's 0.9 forgets within ten pulls.
    radius: float = 0.9
    # 1 trains the reward models on standardised rewards, as NEUBAY's state models; 0, as its bandit, on raw ones.
    standardise: int = 0
    tests: int = 20  # real bandits per success probability
    members: int = 128  # reward models trained; the best `rollouts` of them are used
    epochs: int = 500  # of their training, at most


SETTINGS: Mapping[str, BanditSettings] = {
    "paper": BanditSettings(),
    "full": BanditSettings(
        updates=3000, width=128, states=64, hidden=128, encoder_lr=1e-4, head_lr=1e-4, tau=0.03, buffer=500_000, standardise=1,
        centre=1,
    ),
    "quick": BanditSettings(
        updates=1000, width=32, states=16, hidden=32, encoder_lr=3e-4, head_lr=3e-4, tau=0.1, buffer=200_000, standardise=1,
        centre=1,
    ),
    "tiny": BanditSettings(
        seeds=2, updates=4, rollouts=4, batch=150, width=8, states=4, hidden=8, tests=2, members=6, epochs=2
    ),
}  # fmt: skip


def run(settings: BanditSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Train and test one agent; ``folder`` holds the training's checkpoints."""
    world = learned_world(settings, cell.seed)
    penalty = settings.penalty if cell.method == "penalised" else 0.0
    agent = trained_agent(settings, world, penalty, folder, seed=cell.seed)
    arm = tested(settings, agent, seed=cell.seed)
    return {
        "arm_1": arm.mean((1, 2)).tolist(),
        "arm_1_by_pull": {str(p): arm[i].mean(0).tolist() for i, p in enumerate(GRID)},
        "best_arm": [float((arm[i] == (p > KNOWN)).float().mean()) for i, p in enumerate(GRID)],
        "mu": world.mu.mean(0).tolist(),
        "uncertainty": world.uncertainty.tolist(),
    }


def learned_world(settings: BanditSettings, seed: int) -> ElitePredictions:
    """Draw the data and train the ensemble; the same for both methods of a seed."""
    training = RewardTraining(members=settings.members, elites=settings.rollouts, epochs=settings.epochs)
    reward = torch.bernoulli(torch.full((EPISODES * HORIZON,), KNOWN), generator=stream(seed, "bandit", "data"))
    with initial_weights(seed, "bandit", "ensemble"):
        ensemble = RewardEnsemble(training.members, ARMS, training.hidden)
    mean, std = (float(reward.mean()), float(reward.std())) if settings.standardise else (0.0, 1.0)
    loss = fit_rewards(ensemble, (reward - mean) / std, training, generator=stream(seed, "bandit", "ensemble"))
    return elite_predictions(ensemble, loss, training.elites).rescaled(mean, std)


def trained_agent(
    settings: BanditSettings, world: ElitePredictions, penalty: float, folder: Path, *, seed: int
) -> RecurrentQAgent:
    """Imagine a generation of episodes, learn from packed sequences, repeat; resume from ``folder``."""
    config = RecurrentQConfig(
        memory=MemoryConfig(settings.width, settings.states, radius_max=settings.radius),
        hidden=settings.hidden,
        tau=settings.tau,
        encoder_lr=settings.encoder_lr,
        head_lr=settings.head_lr,
    )
    with initial_weights(seed, "bandit", "agent"):
        agent = RecurrentQAgent(OBS, ARMS, config)
    buffer = PackedSequenceBuffer(settings.buffer, OBS, ARMS)
    generator = stream(seed, "bandit", "training")
    state = LoopState(generator, {"agent": agent, "tape": buffer})

    def take(update: int, progress: Progress) -> int:
        epsilon = 1 + (settings.epsilon_end - 1) * min(update / (settings.updates * settings.epsilon_share), 1.0)
        imagine(agent, world, penalty, settings, buffer, epsilon=epsilon, generator=generator)
        updates = math.ceil(settings.rollouts * HORIZON * settings.updates_per_step)
        for _ in range(updates):
            agent.update(buffer.sample(settings.batch, generator=generator))
            progress.advance()
        return update + updates

    def due(update: int, saved: int) -> bool:
        return update * CHECKPOINTS // settings.updates > saved * CHECKPOINTS // settings.updates

    repeat(Training("bandit", folder / "checkpoints", extra=state), take, settings.updates, due=due, uncut="generation")
    return agent


def imagine(
    agent: RecurrentQAgent,
    world: ElitePredictions,
    penalty: float,
    settings: BanditSettings,
    buffer: PackedSequenceBuffer,
    *,
    epsilon: float,
    generator: torch.Generator,
) -> None:
    """Play one episode in each member and store them; only the stored rewards hold the penalty."""

    def pay(arm: Tensor, t: int) -> Tensor:
        return world.rewards(arm, generator=generator)

    arm, raw = play(agent, settings.rollouts, pay, epsilon=epsilon, generator=generator)
    centre = float(world.mu[:, 0].mean()) if settings.centre else 0.0  # all members agree on the arm that the data show
    trained_on = raw - centre - penalty * world.uncertainty[arm]
    for row in range(settings.rollouts):
        obs = torch.cat([torch.zeros(1), raw[row]])[:, None]
        chosen = F.one_hot(arm[row], ARMS).float()
        buffer.add(segment(obs, chosen, trained_on[row], terminated=False, real=False))


def play(
    agent: RecurrentQAgent, rows: int, pay: Any, *, epsilon: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Play ``rows`` episodes side by side; return arms int64 and rewards, ``[rows, HORIZON]`` each.

    ``pay`` maps arms int64 ``[rows]`` and the pull's number to rewards ``[rows]``; ``epsilon`` is the random share of
    pulls.
    """
    obs, chosen, state = torch.zeros(rows, OBS), torch.zeros(rows, ARMS), None
    arms, rewards = [], []
    for t in range(HORIZON):
        arm, state = agent.act(obs, chosen, state, epsilon=epsilon, generator=generator)
        reward = pay(arm, t)
        obs, chosen = reward[:, None], F.one_hot(arm, ARMS).float()
        arms.append(arm)
        rewards.append(reward)
    return torch.stack(arms, 1), torch.stack(rewards, 1)


def tested(settings: BanditSettings, agent: RecurrentQAgent, *, seed: int) -> Tensor:
    """Play greedily in real bandits, of equal outcomes for both methods: arms ``[grid, tests, HORIZON]`` of 0 and 1."""
    p = torch.tensor(GRID).repeat_interleave(settings.tests)
    chance = torch.stack([torch.full_like(p, KNOWN), p], 1)[:, None].expand(-1, HORIZON, -1)
    outcome = torch.bernoulli(chance, generator=stream(seed, "bandit", "test"))

    def pay(arm: Tensor, t: int) -> Tensor:
        return outcome[:, t].gather(1, arm[:, None]).squeeze(1)

    arm, _ = play(agent, len(p), pay, epsilon=0.0, generator=stream(seed, "bandit", "greedy"))
    return arm.reshape(len(GRID), settings.tests, HORIZON).float()


def conclude(settings: BanditSettings, results: Results) -> Findings:
    """Compare the two agents."""
    share = {m: column(results, m, "arm_1") for m in METHODS}
    at = {name: [GRID.index(p) for p in chosen] for name, chosen in (("better", BETTER), ("worse", WORSE))}
    mean = {m: {name: share[m][:, columns].mean(1) for name, columns in at.items()} for m in METHODS}
    claims = [
        Claim(
            f"neutral keeps arm 1 where it is better and returns to arm 0 where it is worse (p in {BETTER} against {WORSE})",
            "share of pulls, difference",
            mean["neutral"]["better"] - mean["neutral"]["worse"],
        ),
        Claim(
            f"where arm 1 is better, neutral pulls it more than penalised (p in {BETTER})",
            "share of pulls, difference",
            mean["neutral"]["better"] - mean["penalised"]["better"],
        ),
        Claim(
            f"penalised commits to arm 0: it pulls arm 1 in under 10 % of pulls even where it is better (p in {BETTER})",
            "10 % less the share of pulls",
            0.1 - mean["penalised"]["better"],
        ),
    ]
    return Findings(claims, [grid_table(results), ensemble_table(results)], curves(results), notes(settings))


def curves(results: Results) -> list[Any]:
    """Arm 1's share over its success probability, and over the pulls of an episode."""
    share = {m: [found["arm_1"] for found in results[m]] for m in METHODS}
    label = "success probability of arm 1 (arm 0: 0.5)"
    figure = [across_seeds("Pulls of arm 1", label, "share of pulls", GRID, share, percent=True)]
    for method in METHODS:
        shown = (0.01, 0.3, 0.7, 0.99)
        by_pull = {f"p = {p}": [found["arm_1_by_pull"][str(p)] for found in results[method]] for p in shown}
        title = f"{method}: pulls of arm 1 over the episode"
        figure.append(across_seeds(title, "pull", "share of episodes", range(1, HORIZON + 1), by_pull, percent=True))
    return figure


def grid_table(results: Results) -> Table:
    """Shares per success probability, mean over seeds."""
    rows = []
    for method in METHODS:
        for name, key in (("pulls of arm 1", "arm_1"), ("pulls of the better arm", "best_arm")):
            mean = column(results, method, key).mean(0)
            rows.append((f"{method}: {name}", *(f"{100 * value:.1f} %" for value in mean)))
    return Table("Shares by success probability of arm 1", ("Agent", *map(str, GRID)), rows, "Mean over seeds.")


def ensemble_table(results: Results) -> Table:
    """Predictions of the ensembles."""
    rows = []
    for name, key in (("mean over members", "mu"), ("standard deviation over members", "uncertainty")):
        mean = column(results, "neutral", key).mean(0)
        rows.append((name, *(f"{value:.3f}" for value in mean)))
    return Table("The ensemble's mean reward", ("Over seeds", "arm 0", "arm 1"), rows)


def notes(settings: BanditSettings) -> list[str]:
    """Notes on the method."""
    return [
        f"The penalised agent is trained on r - {settings.penalty:g} U; both see raw rewards, in training and in the test.",
        "The reward models learned "
        + ("standardised rewards" if settings.standardise else "the rewards as they are")
        + ("; agents learn from rewards less the data's mean." if settings.centre else "."),
        "Data, ensemble and agent are drawn anew for each seed; the paper has one data set.",
        "The tests are greedy, 100 pulls, and both agents of a seed meet the same outcomes.",
    ]
