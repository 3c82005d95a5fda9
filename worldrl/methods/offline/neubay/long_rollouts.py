"""NEUBAY's rollouts: a recorded history, then one world imagined to the end.

A rollout begins at a random cut of a real episode, from before its first step to after its last. The agent reads the
history (or its last steps alone), then acts in the world. It ends with the task, with the time limit, or at a step with
U > the ζ-quantile of U over the dataset. That step stays, truncated, so its target bootstraps. A cut after the last step
leaves the whole real episode, and nothing is imagined. The world assigns one ensemble member per rollout
(``MemberChoice.rollout``).

Shapes legend: ``B`` rollouts, ``T`` rows of the longest history, ``N`` rows of the dataset, ``S`` observation.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.interfaces import Logs, StateWorld
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.neubay.neubay import Neubay, RecurrentState
from worldrl.methods.offline.neubay.packed_sequences import COLUMNS, PackedSequences, segment

FRESH_MEMORY_ROWS = 65_536  # rows of histories read at once, which bounds the memory in use


@dataclass(frozen=True)
class LongRolloutConfig:
    """Settings of long rollouts."""

    rollouts: int = 100  # per generation, B.
    episode_steps: int = 1000  # time limit of the task, history included.
    horizon: int | None = None  # imagined steps at most; null up to the time limit (for the sweep over horizons).
    threshold: float = math.inf  # largest uncertainty after which a rollout continues.
    history: int | None = None  # recorded steps at most that are read; null from the episode's first (the paper's).

    def __post_init__(self) -> None:
        require_at_least_one(self, ("rollouts", "episode_steps"), of="rollouts")
        if self.horizon is not None and self.horizon < 1:
            raise SettingError(f"rollouts.horizon must be at least 1 or null, got {self.horizon}")
        if self.history is not None and self.history < 0:
            raise SettingError(f"rollouts.history must be at least 0 or null, got {self.history}")


@dataclass(frozen=True)
class Episodes:
    """A dataset's rows as consecutive episodes: ``first`` int64 row and ``length`` int64 steps of each."""

    rows: Transitions
    first: Tensor
    length: Tensor

    @classmethod
    def of(cls, rows: Transitions, episode: Tensor) -> "Episodes":
        """Borders of episodes in each row's number ``[N]``; SettingError: no rows, or one in several blocks."""
        ids, length = torch.unique_consecutive(episode, return_counts=True)
        if not len(ids) or len(torch.unique(ids)) < len(ids):
            raise SettingError(f"episodes: {len(ids)} blocks of rows, each episode must be exactly one of them")
        return cls(rows, length.cumsum(0) - length, length)

    def history(self, episode: int, cut: int, steps: int) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Return obs ``[steps + 1, S]``, actions and rewards of the steps before a cut, and whether the task ended there."""
        at = int(self.first[episode]) + cut
        part, rows = slice(at - steps, at), self.rows
        if not steps:
            return rows.obs[at : at + 1], rows.action[part], rows.reward[part], False
        obs = torch.cat([rows.obs[part], rows.next_obs[at - 1 : at]])
        return obs, rows.action[part], rows.reward[part], bool(rows.terminated[at - 1])


@dataclass
class _Rollout:
    """A growing rollout: a real history and the steps imagined after it, from its episode's step ``cut``."""

    obs: list[Tensor]
    action: list[Tensor]
    reward: list[Tensor]
    real: int
    cut: int
    terminated: bool

    def packed(self) -> PackedSequences:
        steps = sum(len(part) for part in self.action)
        return segment(
            torch.cat(self.obs),
            torch.cat(self.action),
            torch.cat(self.reward),
            terminated=self.terminated,
            real=torch.arange(steps) < self.real,
        )


@torch.no_grad()
def long_rollouts(
    agent: Neubay, world: StateWorld, episodes: Episodes, config: LongRolloutConfig, *, generator: torch.Generator
) -> tuple[list[PackedSequences], Logs]:
    """Imagine one generation in a world of these episodes: a segment per rollout, and how rollouts ended."""
    episode = torch.randint(len(episodes.first), (config.rollouts,), generator=generator)
    share = torch.rand(config.rollouts, generator=generator)
    cut = (share * (episodes.length[episode] + 1)).long()  # 0 .. length, uniformly
    made = [_begin(episodes, int(e), int(c), config.history) for e, c in zip(episode, cut, strict=True)]
    open_ = torch.tensor([i for i, c in enumerate(cut.tolist()) if c < int(episodes.length[episode[i]])])
    ends = {"terminated": 0, "truncated": 0, "time": 0}
    if len(open_):
        ends = _imagine(
            agent, world, (episodes.first[episode] + cut)[open_], [made[i] for i in open_.tolist()], config, generator
        )
    packed_rows = [rollout.packed() for rollout in made]
    lengths = torch.tensor(
        [float(len(packed) - 1 - rollout.real) for packed, rollout in zip(packed_rows, made, strict=True)]
    )
    logs = {f"rollouts/{name}": torch.tensor(count / config.rollouts) for name, count in ends.items()}
    return packed_rows, logs | {"rollouts/imagined_median": lengths.median(), "rollouts/imagined_mean": lengths.mean()}


def _begin(episodes: Episodes, episode: int, cut: int, longest: int | None) -> _Rollout:
    steps = cut if longest is None else min(cut, longest)
    if cut and cut == int(episodes.length[episode]):
        steps = max(1, steps)  # nothing is imagined, and a sequence needs one step: the real ending
    obs, action, reward, terminated = episodes.history(episode, cut, steps)
    return _Rollout([obs], [action], [reward], steps, cut, terminated)


def _imagine(
    agent: Neubay,
    world: StateWorld,
    index: Tensor,
    rollouts: list[_Rollout],
    config: LongRolloutConfig,
    generator: torch.Generator,
) -> dict[str, int]:
    """Grow rollouts from rows ``index`` until each has ended; count the kinds of endings."""
    state, obs = world.start(index, generator=generator)
    memory, action, reward = read_histories(agent, rollouts)
    alive = torch.arange(len(rollouts))
    ends = {"terminated": 0, "truncated": 0, "time": 0}
    for step in range(config.horizon or config.episode_steps):
        action, memory = agent.step(obs, action, reward, memory, generator=generator)
        state, outcome = world.step(state, action, generator=generator)
        obs, reward = outcome.obs, outcome.reward
        spent = torch.tensor([rollouts[i].cut + step + 1 for i in alive.tolist()])
        over = (spent >= config.episode_steps) | torch.tensor(step + 1 == (config.horizon or config.episode_steps))
        truncated = outcome.uncertainty > config.threshold
        for row, number in enumerate(alive.tolist()):
            rollout = rollouts[number]
            rollout.obs.append(obs[row : row + 1])
            rollout.action.append(action[row : row + 1])
            rollout.reward.append(reward[row : row + 1])
            rollout.terminated = bool(outcome.terminated[row])
        going = ~(outcome.terminated | truncated | over)
        ends["terminated"] += int(outcome.terminated.sum())
        ends["truncated"] += int((truncated & ~outcome.terminated).sum())
        ends["time"] += int((over & ~truncated & ~outcome.terminated).sum())
        kept = going.nonzero()[:, 0]
        if not len(kept):
            break
        state, memory, alive = world.select(state, kept), memory.select(kept), alive[kept]
        obs, action, reward = obs[kept], action[kept], reward[kept]
    return ends


def read_histories(agent: Neubay, rollouts: list[Any]) -> tuple[RecurrentState, Tensor, Tensor]:
    """Let the agent read all but the last arrival: its memory, last action ``[B, A]`` and reward ``[B]``."""
    packed_rows = [rollout.packed() for rollout in rollouts]
    size = max(1, FRESH_MEMORY_ROWS // max(len(packed) for packed in packed_rows))
    parts = [agent.remember(right_aligned(packed_rows[i : i + size])) for i in range(0, len(packed_rows), size)]
    memory = RecurrentState(torch.cat([p.state for p in parts]), torch.cat([p.fresh for p in parts]))
    return (
        memory,
        torch.stack([packed.action[-1] for packed in packed_rows]),
        torch.stack([packed.reward[-1] for packed in packed_rows]),
    )


def right_aligned(packed_rows: list[PackedSequences]) -> PackedSequences:
    """Stack packed sequences without their last rows, ``[B, T, ...]``; the padding before each is zeros and resets."""
    rows = max(1, max(len(packed) for packed in packed_rows) - 1)

    def stack(name: str, fill: bool = False) -> Tensor:
        columns = [getattr(packed, name)[:-1] for packed in packed_rows]
        out = torch.full((len(packed_rows), rows, *columns[0].shape[1:]), fill, dtype=columns[0].dtype)
        for row, column in enumerate(columns):
            if len(column):
                out[row, -len(column) :] = column
        return out

    return PackedSequences(*(stack(name, fill=name == "reset") for name in COLUMNS))
