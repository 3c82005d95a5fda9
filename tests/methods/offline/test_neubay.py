"""Units under test: ``worldrl.methods.offline.neubay.neubay``, ``long_rollouts`` and ``neubay_training``."""

import copy
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Outcome, Transitions
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.networks import Gaussian, squashed_sample
from worldrl.methods.offline.neubay.long_rollouts import Episodes, LongRolloutConfig, long_rollouts
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.neubay import Neubay, NeubayConfig, kappa_mean
from worldrl.methods.offline.neubay.packed_sequences import COLUMNS, PackedSequences, segment
from worldrl.methods.offline.neubay.settings_by_dataset import DATASETS, tuned_for
from worldrl.methods.offline.neubay.training import NeubayTraining, train_neubay
from worldrl.methods.offline.sac import soft_target

SMALL = NeubayConfig(memory=MemoryConfig(8, 4, 2), hidden=(8, 8), critics=4, encoder_rate=1e-3, head_rate=1e-3)


def laid_together(parts: list[PackedSequences]) -> PackedSequences:
    """Put tapes behind one another."""
    return PackedSequences(*(torch.cat([getattr(part, name) for part in parts]) for name in COLUMNS))


class Line:
    """A closed-form world: s' = s + a / 10, reward s', the task ends above 1, uncertainty |s'|."""

    obs_size, action_size = 1, 1

    def __init__(self, starts: Tensor, end: float = 1.0) -> None:
        self.starts, self.end = starts, end

    def start(self, index: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.starts[index], self.starts[index]

    def step(self, state: Tensor, action: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Outcome]:
        arrived = state + action / 10
        place = arrived[:, 0]
        return arrived, Outcome(arrived, place, place > self.end, place.abs())

    def select(self, state: Tensor, index: Tensor) -> Tensor:
        return state[index]


def dataset(episodes: int = 6, steps: int = 5) -> Episodes:
    """Episodes of growing length; observation 100 e + t, as numbers that say where they come from."""
    obs, ids = [], []
    for number in range(episodes):
        obs.append(100.0 * number + torch.arange(steps + number))
        ids += [number] * (steps + number)
    place = torch.cat(obs)
    rows = len(place)
    no = torch.zeros(rows, dtype=torch.bool)
    last = no.clone()
    last[-1] = True  # the last episode ends its task
    data = Transitions(place[:, None], place[:, None] / 1e3, place / 10, place[:, None] + 1, last, no)
    return Episodes.of(data, torch.tensor(ids))


def agent(config: NeubayConfig = SMALL, seed: int = 0) -> Neubay:
    with initial_weights(seed, "neubay"):
        return Neubay(config, Facts(torch.zeros(1), torch.ones(1), 1, updates=100))


def packed(*lengths: int, seed: int = 0) -> PackedSequences:
    generator = stream(seed, "tape")
    parts = []
    for number, steps in enumerate(lengths):
        draw = torch.randn(3, steps + 1, generator=generator)
        action = draw[1, :steps, None].tanh()
        parts.append(segment(draw[0, :, None], action, draw[2, :steps], terminated=number == 0, real=number % 2 == 0))
    return laid_together(parts)


# --- mathematics ----------------------------------------------------------------------------------------------------


def test_kappa_weighs_the_two_kinds_by_their_own_means() -> None:
    loss = torch.tensor([1.0, 3.0, 99.0, 10.0])
    real = torch.tensor([True, True, True, False])
    pairs = torch.tensor([True, True, False, True])
    assert float(kappa_mean(loss, real, pairs, 0.8)) == pytest.approx(0.8 * 2 + 0.2 * 10)
    assert float(kappa_mean(loss, ~real & real, pairs, 0.8)) == pytest.approx(0.2 * 14 / 3)  # nothing real: weight lost


def test_target_by_hand() -> None:
    q = torch.tensor([[5.0, 7.0], [6.0, 3.0]])
    y = soft_target(
        torch.tensor([1.0, 1.0]),
        torch.tensor([False, True]),
        q,
        torch.tensor([-2.0, -2.0]),
        alpha=0.5,
        discount=0.9,
    )
    assert y.tolist() == pytest.approx([1 + 0.9 * (5 + 1), 1.0])


def test_heads_are_members_of_their_own() -> None:
    heads = agent().critic.heads
    features, action = torch.randn(7, 8, generator=stream(0, "h")), torch.randn(7, 1, generator=stream(0, "a"))
    q = heads(features, action)
    assert q.shape == (4, 7)
    chosen = torch.tensor([2, 0])
    torch.testing.assert_close(heads(features, action, chosen), q[chosen])
    with torch.no_grad():
        heads.linears[0].weight[2, 0, 0] += 1
    moved = (heads(features, action) - q).abs().amax(1) > 1e-8
    assert moved.tolist() == [False, False, True, False]


def test_paper_table() -> None:
    config = tuned_for("hopper-medium-replay")
    assert (config.encoder_rate, config.kappa, config.temperature) == (3e-7, 0.5, 0.2)
    assert len(DATASETS) == 28
    with pytest.raises(SettingError, match="did you mean 'hopper-medium'"):
        tuned_for("hopper-mediun")


# --- agent ----------------------------------------------------------------------------------------------------------


def test_acting_step_by_step_is_the_policy_on_the_tape() -> None:
    made, line = agent(), packed(6)
    features, _ = made.actor.encoder(line.obs, line.action, line.reward, line.reset)
    whole = made.actor.head(features).mean.tanh()
    memory, rows = made.begin(1), []
    for t in range(7):
        action, memory = made.step(
            line.obs[t : t + 1], line.action[t : t + 1], line.reward[t : t + 1], memory, generator=None
        )
        rows.append(action)
    torch.testing.assert_close(torch.cat(rows), whole)


def test_target_bootstraps_from_a_truncation_and_not_from_an_end() -> None:
    made, line = agent(), packed(3, 3)  # the first segment terminates, the second is cut
    policy = made.actor.head(made.actor.encoder(line.obs, line.action, line.reward, line.reset)[0])
    y = made.target(line, policy, stream(0, "y"))
    assert float(y[2].detach()) == pytest.approx(float(line.reward[3]))
    assert abs(float(y[6] - line.reward[7])) > 1e-4


def test_target_takes_the_least_of_two_members_and_the_entropy() -> None:
    made = agent(replace(SMALL, temperature=0.5, discount=0.9))
    with torch.no_grad():
        for parameter in made.target_critic.heads.linears[-1].parameters():
            parameter.zero_()
        made.target_critic.heads.linears[-1].bias[:, 0, 0] = torch.tensor([1.0, 2.0, 4.0, 8.0])
    line = packed(4)
    line = replace(line, terminated=torch.zeros(5, dtype=torch.bool), reward=torch.zeros(5))
    policy = Gaussian(torch.zeros(5, 1), torch.zeros(5, 1))
    _, logp = squashed_sample(policy, torch.randn(5, 1, generator=stream(0, "y")))
    bootstrapped = made.target(line, policy, stream(0, "y")) / 0.9 + 0.5 * logp[1:]
    assert len({round(v, 4) for v in bootstrapped.tolist()}) == 1  # one subset for the whole tape
    assert round(float(bootstrapped[0]), 4) in (1, 2, 4)


@pytest.mark.parametrize(("kappa", "kind"), [(1.0, False), (0.0, True)])
def test_kappa_at_its_ends_leaves_one_kind_out(kappa: float, kind: bool) -> None:
    line = packed(5, 5)
    reward = torch.where((line.real == kind) & ~line.reset, line.reward + 50, line.reward)
    results = []
    for rows in (line, replace(line, reward=reward)):
        made = agent(replace(SMALL, kappa=kappa))
        features, _ = made.critic.encoder(line.obs, line.action, line.reward, line.reset)
        q = made.critic.heads(features[:-1], line.action[1:]).mean(0)
        results.append(made._mean((q - rows.reward[1:]) ** 2, line))
    torch.testing.assert_close(*results)


def test_encoders_are_slow_and_gradients_reach_everything() -> None:
    made = agent(replace(SMALL, encoder_rate=0.0))
    before = {name: p.detach().clone() for name, p in made.critic.named_parameters()}
    made.learn(packed(6, 4), generator=stream(0, "learn"))
    changed = {name for name, p in made.critic.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if name.startswith("heads.")}
    made = agent()
    made.learn(packed(6, 4), generator=stream(0, "learn"))
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in made.critic.encoder.parameters())
    assert all(p.grad is None or not bool(p.grad.any()) for p in made.target_critic.parameters())


def test_fixed_temperature_stays_and_a_learned_one_moves_towards_its_entropy() -> None:
    fixed = agent(replace(SMALL, temperature=0.2))
    fixed.learn(packed(6), generator=stream(0, "t"))
    assert float(fixed.temperature.alpha) == pytest.approx(0.2)
    free = agent(replace(SMALL, entropy_per_action=-50.0))  # far more entropy is wanted than there is
    free.learn(packed(6), generator=stream(0, "t"))
    assert float(free.temperature.alpha) > 0.2 + 1e-5


# --- rollouts -------------------------------------------------------------------------------------------------------


def test_rollouts_lay_real_history_and_imagination_on_one_tape() -> None:
    episodes = dataset()
    config = LongRolloutConfig(rollouts=60, episode_steps=12)
    packed_rows, logs = long_rollouts(agent(), Line(episodes.rows.obs, 1e9), episodes, config, generator=stream(0, "r"))
    lengths = set()
    for made in packed_rows:
        first, real = float(made.obs[0]), int(made.real[1:].sum())
        assert first % 100 == 0
        assert bool((made.real[1:][:real]).all())  # the history comes first
        torch.testing.assert_close(made.obs[: real + 1, 0], first + torch.arange(real + 1.0))
        torch.testing.assert_close(made.reward[1 : real + 1], made.obs[:real, 0] / 10)
        torch.testing.assert_close(made.action[1 : real + 1, 0], made.obs[:real, 0] / 1e3)
        torch.testing.assert_close(made.obs[real + 1 :, 0], made.obs[real:-1, 0] + made.action[real + 1 :, 0] / 10)
        torch.testing.assert_close(made.reward[real + 1 :], made.obs[real + 1 :, 0])
        complete = real == 5 + round(first / 100)
        assert made.steps == (real if complete else 12)
        assert bool(made.terminated.any()) == (complete and first == 500)
        lengths.add(real)
    assert {0, 1, 5} <= lengths
    assert float(logs["rollouts/truncated"]) == 0


def test_rollout_ends_after_the_step_that_crosses_the_threshold_without_terminating() -> None:
    episodes = dataset(1, 1)
    config = LongRolloutConfig(rollouts=40, episode_steps=500, threshold=0.3)
    packed_rows, logs = long_rollouts(agent(), Line(episodes.rows.obs), episodes, config, generator=stream(1, "r"))
    imagined = [made for made in packed_rows if not bool(made.real[1])]
    assert imagined
    for made in imagined:
        assert float(made.obs[-1].abs()) > 0.3
        assert float(made.obs[:-1].abs().max()) <= 0.3
        assert not bool(made.terminated.any())
    assert float(logs["rollouts/truncated"]) == pytest.approx(len(imagined) / 40)


def test_rollout_ends_with_the_task_and_says_so() -> None:
    episodes = dataset(1, 1)
    config = LongRolloutConfig(rollouts=20, episode_steps=2000)
    packed_rows, _ = long_rollouts(agent(), Line(episodes.rows.obs, 0.2), episodes, config, generator=stream(2, "r"))
    ended = [made for made in packed_rows if bool(made.terminated[-1]) and not bool(made.real[1])]
    assert ended
    for made in ended:
        assert float(made.obs[-1]) > 0.2 >= float(made.obs[:-1].max())


def test_horizon_bounds_the_imagined_part_alone() -> None:
    episodes = dataset()
    config = LongRolloutConfig(rollouts=30, episode_steps=1000, horizon=3)
    packed_rows, _ = long_rollouts(agent(), Line(episodes.rows.obs, 1e9), episodes, config, generator=stream(3, "r"))
    assert {int((~made.real[1:]).sum()) for made in packed_rows} == {0, 3}


@pytest.mark.parametrize("history", [0, 2])
def test_of_the_history_the_last_steps_alone_are_read(history: int) -> None:
    episodes = dataset()
    config = LongRolloutConfig(rollouts=60, episode_steps=12, history=history)
    packed_rows, _ = long_rollouts(agent(), Line(episodes.rows.obs, 1e9), episodes, config, generator=stream(0, "r"))
    for made in packed_rows:
        real, first = int(made.real[1:].sum()), float(made.obs[0])
        cut = round(first % 100) + real  # steps of the episode before the first imagined one
        complete = cut == 5 + round(first // 100)
        assert real == min(cut, max(history, complete))
        torch.testing.assert_close(made.obs[: real + 1, 0], first + torch.arange(real + 1.0))
        assert made.steps == (real if complete else real + 12 - cut)
        assert bool(made.terminated.any()) == (complete and first >= 500)


def test_history_is_remembered_as_if_it_had_been_lived() -> None:
    made, lines = agent(), [packed(5, seed=1), packed(0, seed=2), packed(2, seed=3)]
    from worldrl.methods.offline.neubay.long_rollouts import right_aligned

    together = made.remember(right_aligned(lines))
    assert together.fresh.tolist() == [False, True, False]
    for row, line in enumerate(lines):
        memory = made.begin(1)
        for t in range(len(line) - 1):
            at = slice(t, t + 1)
            _, memory = made.step(line.obs[at], line.action[at], line.reward[at], memory, generator=None)
        torch.testing.assert_close(together.state[row], memory.state[0])


def test_episodes_must_be_blocks() -> None:
    rows = dataset(2, 2).rows
    with pytest.raises(SettingError, match="exactly one"):
        Episodes.of(rows, torch.tensor([0, 1, 0, 1, 1]))


# --- training -------------------------------------------------------------------------------------------------------

TRAINING = NeubayTraining(
    updates=9,
    rows=20,
    buffer=300,
    updates_per_step=0.05,
    rollouts=LongRolloutConfig(rollouts=4, episode_steps=12),
    checkpoint_generations=1,
)


def trained(folder: Path | None, stop: int | None = None, asks: int | None = None) -> Neubay:
    """Train to the end, or to a stop at so many updates, or to a Ctrl-C there with checkpoints far apart."""
    episodes = dataset()
    made = agent()
    config = TRAINING if asks is None else replace(TRAINING, checkpoint_generations=1000)

    def stopper(updates: int) -> None:
        if stop is not None and updates >= stop:
            raise KeyboardInterrupt
        if asks is not None and updates >= asks:
            os.kill(os.getpid(), signal.SIGINT)

    train_neubay(made, Line(episodes.rows.obs, 1e9), episodes, config, seed=0, folder=folder, on_generation=stopper)
    return made


@pytest.mark.parametrize("how", ["stop", "asks"])
def test_resumed_training_is_the_uninterrupted_one(tmp_path: Path, how: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, **{how: 3})
    assert how == "stop" or any(tmp_path.iterdir()), "Ctrl-C lost what was learnt since the last checkpoint"
    again, whole = trained(tmp_path), trained(None)
    assert again.updates == whole.updates == 9
    for name, module in whole.modules.items():
        for key, value in module.state_dict().items():
            assert torch.equal(again.modules[name].state_dict()[key], value), f"{name}.{key}"


def test_it_learns_to_go_where_the_reward_is() -> None:
    """On the line the reward is the place itself: the best policy always goes up, and the worst one down."""
    start = torch.zeros(20, 1)
    no = torch.zeros(20, dtype=torch.bool)
    draws = stream(0, "line")
    action = 2 * torch.rand(20, 1, generator=draws) - 1
    rows = Transitions(start, action, action[:, 0] / 10, action / 10, no, no)
    episodes = Episodes.of(rows, torch.arange(20))
    config = replace(SMALL, head_rate=3e-3, temperature=0.01, discount=0.9, polyak=0.05)
    training = replace(TRAINING, updates=120, rows=60, buffer=3000, updates_per_step=0.5, checkpoint_generations=10**6)
    made = agent(config)
    made.facts = replace(made.facts, updates=10**6)
    train_neubay(made, Line(start, math.inf), episodes, training, seed=0)
    obs, memory, led, reward = torch.zeros(1, 1), made.begin(1), torch.zeros(1, 1), torch.zeros(1)
    for _ in range(8):
        led, memory = made.step(obs, led, reward, memory, generator=None)
        obs = obs + led / 10
        reward = obs[:, 0]
    assert float(obs) > 0.5


def test_state_dict_brings_everything_back() -> None:
    made, again = agent(), agent(seed=5)
    made.learn(packed(6, 4), generator=stream(0, "learn"))
    again.load_state_dict(copy.deepcopy(made.state_dict()))
    for one in (made, again):
        one.learn(packed(5, seed=9), generator=stream(1, "learn"))
    for name, module in made.modules.items():
        for key, value in module.state_dict().items():
            assert torch.equal(again.modules[name].state_dict()[key], value), f"{name}.{key}"
