"""GRPO's objective against closed forms and finite differences; what must not move does not move, to the bit."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.rng import stream
from worldrl.core.types import Likelihood, PolicyObs
from worldrl.methods.rl.config import GrpoConfig
from worldrl.methods.rl.grpo import categorical_kl, reference_kl, sampled_kl
from worldrl.methods.rl.imagination import PolicyChunks
from worldrl.methods.rl.losses import clipped_objective
from worldrl.rollout.imagined.rollouts import ImaginedRollouts


class Softmax(torch.nn.Module):
    """A policy in float64 whose logits are a linear map of the commanded pose."""

    device = torch.device("cpu")

    def __init__(self, seed: int, *, length: int = 2, bins: int = 3) -> None:
        super().__init__()
        weight = torch.randn(7, length * 7 * bins, generator=stream(seed, "softmax"), dtype=torch.float64)
        self.weight, self.shape = torch.nn.Parameter(weight), (length, 7, bins)

    def logits(self, obs: PolicyObs) -> torch.Tensor:
        return (obs.command.double() @ self.weight).unflatten(1, self.shape)

    def likelihood(self, obs: PolicyObs, token: torch.Tensor, *, temperature: float) -> Likelihood:
        logits = self.logits(obs) / temperature
        return Likelihood(logits.log_softmax(dim=-1).gather(-1, token[..., None]).squeeze(-1), logits)


def make_batch(rows: int = 5, *, seed: int = 0, old: Softmax, temperature: float = 1.0) -> PolicyChunks:
    draw = stream(seed, "batch")
    obs = PolicyObs(torch.zeros(rows, 8, 8, 3, dtype=torch.uint8), torch.randn(rows, 7, generator=draw), ["x"] * rows)
    with torch.no_grad():
        logp = (old.logits(obs) / temperature).log_softmax(dim=-1)
    token = torch.randint(3, (rows, 2, 7), generator=draw)
    advantage = torch.randn(rows, generator=draw, dtype=torch.float64)
    weight = torch.rand(rows, generator=draw, dtype=torch.float64) + 0.5
    return PolicyChunks(obs, token, logp.gather(-1, token[..., None]).squeeze(-1), advantage, weight)


def one(value: float) -> torch.Tensor:
    return torch.tensor([[[value]]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.1, 2.0, 2.2, 2.0),
        (1.27, 1.0, 1.27, 1.0),  # clip-higher: 1.2 is not yet the limit upwards
        (1.5, 1.0, 1.28, 0.0),
        (0.5, 1.0, 0.5, 1.0),  # a good token that became rare is pulled back
        (1.5, -1.0, -1.5, -1.0),
        (0.5, -1.0, -0.8, 0.0),
        (2.9, -1.0, -2.9, -1.0),
        (4.0, -1.0, -3.0, 0.0),  # dual clip
        (4.0, 1.0, 1.28, 0.0),
    ],
)
def test_clipping_by_hand(ratio, advantage, expected, slope):
    logp = one(math.log(ratio)).requires_grad_()
    value = clipped_objective(logp, one(0.0), one(advantage), clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    assert value.item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(value.sum(), logp)
    assert gradient.item() == pytest.approx(slope * ratio, abs=1e-12)


@pytest.fixture
def loss_of(grpo_on):
    """GRPO's loss of some chunks, and what it says."""
    nothing = SimpleNamespace(group=torch.zeros(2, dtype=torch.int64))

    def loss(policy, batch, config, reference, *, temperature):
        method = grpo_on(policy, nothing, config, reference=reference, temperature=temperature)
        return method.loss_of(batch, torch.Generator())

    return loss


@pytest.mark.parametrize("kl", [{}, {"kl": 0.3}, {"anchor": 0.3}, {"kl": 0.3, "anchor": 0.7}])
@pytest.mark.parametrize("temperature", [1.0, 1.6])
def test_gradient_by_finite_differences(loss_of, kl, temperature):
    old, reference, policy = Softmax(1), Softmax(2), Softmax(1)
    config = GrpoConfig(**kl)
    with torch.no_grad():  # ratios on both sides of the clips
        policy.weight += 0.05 * torch.randn(policy.weight.shape, generator=stream(0, "away"), dtype=torch.float64)
    batch = make_batch(old=old, temperature=temperature)
    batch = replace(batch, silent=make_batch(9, seed=1, old=old, temperature=temperature))
    loss, _ = loss_of(policy, batch, config, reference, temperature=temperature)
    (gradient,) = torch.autograd.grad(loss, policy.weight)
    direction = torch.randn(policy.weight.shape, generator=stream(0, "direction"), dtype=torch.float64)
    values, start, h = [], policy.weight.detach().clone(), 1e-6
    for sign in (1, -1):
        policy.weight.data = start + sign * h * direction
        values.append(loss_of(policy, batch, config, reference, temperature=temperature)[0].item())
    assert (values[0] - values[1]) / (2 * h) == pytest.approx((gradient * direction).sum().item(), rel=1e-5)


def test_at_the_acting_policy_the_gradient_is_reinforce(loss_of):
    policy = Softmax(1)
    batch = make_batch(old=policy)
    (gradient,) = torch.autograd.grad(loss_of(policy, batch, GrpoConfig(), None, temperature=1.0)[0], policy.weight)
    logp = policy.logits(batch.obs).log_softmax(dim=-1).gather(-1, batch.token[..., None]).squeeze(-1)
    weight = (batch.weight * batch.advantage)[:, None, None]
    (expected,) = torch.autograd.grad(-(weight * logp).mean(), policy.weight)
    torch.testing.assert_close(gradient, expected)


def test_kl_is_zero_at_the_reference_and_positive_elsewhere(loss_of):
    logits = torch.randn(4, 2, 7, 5, generator=stream(0, "logits"), dtype=torch.float64)
    logits[..., 3] = -1e9  # a forbidden bin
    other = logits + 0.1 * torch.randn(logits.shape, generator=stream(1, "logits"), dtype=torch.float64)
    assert categorical_kl(logits, logits + 3).abs().max() < 1e-12
    assert (categorical_kl(logits, other) > 0).all()
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
    expected = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert categorical_kl(p.log(), q.log()).item() == pytest.approx(expected, rel=1e-5)
    policy = Softmax(1)
    batch = make_batch(old=policy)
    _, logs = loss_of(policy, batch, GrpoConfig(kl=0.1), copy.deepcopy(policy), temperature=1.0)
    assert logs["kl"].abs() < 1e-12
    assert logs["approx_kl"].abs() < 1e-12


def test_the_anchor_is_the_kl_on_silent_chunks_alone(loss_of):
    policy, reference = Softmax(1), Softmax(2)
    batch, silent = make_batch(old=policy), make_batch(1, seed=1, old=policy)  # one chunk, so that all draws are it
    plain, _ = loss_of(policy, batch, GrpoConfig(), None, temperature=1.0)
    for config, held in ((GrpoConfig(anchor=0.5), silent), (GrpoConfig(anchor=0.5), None)):
        loss, logs = loss_of(policy, replace(batch, silent=held), config, reference, temperature=1.0)
        if held is None:  # every rollout taught something
            assert "anchor_kl" not in logs
            assert loss.item() == plain.item()
            continue
        own, other = (p.likelihood(silent.obs, silent.token, temperature=1.0).logits for p in (policy, reference))
        expected = categorical_kl(own, other).mean().item()
        assert logs["anchor_kl"].item() == pytest.approx(expected)
        assert (loss - plain).item() == pytest.approx(0.5 * expected)
        assert "kl" not in logs


def test_the_sampled_kl_is_unbiased_for_gaussians_and_never_negative():
    draws = torch.randn(200_000, generator=stream(0, "draws"), dtype=torch.float64)
    own, other = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.3, 1.0)
    each = sampled_kl(own.log_prob(draws), other.log_prob(draws))
    assert each.min() >= 0
    assert each.mean().item() == pytest.approx(0.3**2 / 2, rel=0.02)


@pytest.mark.parametrize("blind", [0, 1])
def test_the_kl_is_exact_only_where_both_policies_know_their_distribution(blind):
    policy, reference = Softmax(1), Softmax(2)
    batch = make_batch(old=policy)
    own, other = (p.likelihood(batch.obs, batch.token, temperature=1.0) for p in (policy, reference))
    exact = categorical_kl(own.logits, other.logits)
    torch.testing.assert_close(reference_kl(own, other), exact)
    pair = [own, other]
    pair[blind] = Likelihood(pair[blind].logp)
    torch.testing.assert_close(reference_kl(*pair), sampled_kl(own.logp, other.logp))
    assert not torch.allclose(sampled_kl(own.logp, other.logp), exact)


# -- rollouts to chunks --------------------------------------------------------------------------------------------


@pytest.fixture
def make_rollouts(tiny_policy):
    """Rollouts of a tiny policy: ``length`` chunks and ``success`` per row."""

    def make(success, length, *, group_size, policy=None, seed=0):
        policy = policy or tiny_policy()
        rows, steps = len(success), max(length)
        draw = stream(seed, "rollouts")
        image = torch.randint(0, 256, (steps, rows, 16, 16, 3), generator=draw, dtype=torch.uint8)
        command, words = torch.randn(steps, rows, 7, generator=draw), ("pick up the red cube",) * rows
        chunks = [
            policy.act(PolicyObs(image[t], command[t], words), generators=[stream(seed, t, r) for r in range(rows)])
            for t in range(steps)
        ]
        return ImaginedRollouts(
            image=image,
            command=command,
            instruction=words,
            token=torch.stack([chunk.token for chunk in chunks]),
            logp=torch.stack([chunk.logp for chunk in chunks]),
            valid=torch.arange(steps)[:, None] < torch.tensor(length),
            success=torch.tensor(success, dtype=torch.bool),
            group=torch.arange(rows) // group_size,
            task=("PickRedCube",) * rows,
        )

    return make


def test_only_chunks_of_informative_groups_up_to_success_are_kept(make_rollouts, kept_chunks):
    rollouts = make_rollouts([1, 0, 1, 1, 0, 0], [1, 3, 2, 2, 3, 3], group_size=2)
    batch, logs = kept_chunks(rollouts, GrpoConfig(group_size=2, keep_low=0, keep_high=1))
    assert len(batch) == 1 + 3
    torch.testing.assert_close(batch.token[0], rollouts.token[0, 0])
    assert sorted(batch.advantage.tolist()) == pytest.approx([-(0.5**0.5)] * 3 + [0.5**0.5], abs=1e-4)
    assert logs["grpo/imagined_success"].item() == 0.5
    assert logs["grpo/kept_rollouts"].item() == pytest.approx(1 / 3)


def test_silent_chunks_are_those_of_rollouts_that_teach_nothing(make_rollouts, kept_chunks):
    rollouts = make_rollouts([1, 0, 1, 1, 0, 0], [1, 3, 2, 2, 3, 3], group_size=2)
    batch, _ = kept_chunks(rollouts, GrpoConfig(group_size=2, keep_low=0, keep_high=1, anchor=0.1))
    assert len(batch.silent) == 2 + 2 + 3 + 3
    torch.testing.assert_close(batch.silent.token[:4], rollouts.token[0, 2:])
    assert batch.select(torch.tensor([0])).silent is batch.silent
    plain, _ = kept_chunks(rollouts, GrpoConfig(group_size=2, keep_low=0, keep_high=1))
    assert plain.silent is None
    torch.testing.assert_close(batch.weight, plain.weight)


def test_an_anchor_holds_what_is_not_learned_from(make_rollouts, tiny_policy, updated):
    """One group teaches, the other succeeds always: there the policy stays nearer to where it began."""
    moved = []
    for anchor in (0.0, 10.0):
        policy = tiny_policy()
        rollouts = make_rollouts([1, 0, 1, 1], [2, 2, 2, 2], group_size=2, policy=policy)
        config = GrpoConfig(group_size=2, keep_low=0, keep_high=1, anchor=anchor, epochs=60)
        reference = copy.deepcopy(policy).eval()
        updated(policy, torch.optim.SGD(policy.parameters(), lr=0.3), rollouts, config, reference=reference)
        obs = PolicyObs(rollouts.image[0, 2:], rollouts.command[0, 2:], rollouts.instruction[2:])
        own, before = (p.likelihood(obs, rollouts.token[0, 2:], temperature=1.0) for p in (policy, reference))
        moved.append(reference_kl(own, before).mean().item())
    assert moved[1] < 0.5 * moved[0]


def test_rollouts_of_different_length_weigh_equally(make_rollouts, kept_chunks):
    rollouts = make_rollouts([1, 0], [1, 4], group_size=2)
    batch, _ = kept_chunks(rollouts, GrpoConfig(group_size=2, keep_low=0, keep_high=1))
    good = batch.advantage > 0
    assert batch.weight[good].sum().item() == pytest.approx(batch.weight[~good].sum().item())
    assert batch.weight.mean().item() == pytest.approx(1)
    plain, _ = kept_chunks(rollouts, GrpoConfig(group_size=2, keep_low=0, keep_high=1, length_normalise=False))
    assert plain.weight.tolist() == [1] * 5
    # At the acting policy each ratio is 1: the loss is minus the mean advantage over rollouts, so 0 here.
    assert (batch.weight * batch.advantage).mean().item() == pytest.approx(0, abs=1e-6)
    assert (plain.weight * plain.advantage).mean().item() == pytest.approx(-0.6 * 0.5**0.5, abs=1e-5)


def test_minibatches_cover_every_chunk_once_per_epoch(make_rollouts, grpo_on):
    config = GrpoConfig(group_size=2, keep_low=0, keep_high=1, minibatch=3, epochs=2)
    method = grpo_on(None, make_rollouts([1, 0], [3, 4], group_size=2), config)
    parts = list(method.minibatches(7, iteration=5))
    assert [len(part) for part in parts] == [3, 2, 2] * 2  # no gradient step on the one left over
    for epoch in (parts[:3], parts[3:]):
        assert torch.cat(epoch).sort().values.tolist() == list(range(7))
    assert not torch.equal(parts[0], parts[3])
    assert list(method.minibatches(0, iteration=5)) == []


def test_uninformative_groups_change_nothing_to_the_bit(make_rollouts, tiny_policy, updated):
    policy = tiny_policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1, weight_decay=0.1)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    rollouts = make_rollouts([1, 1, 0, 0], [1, 1, 2, 2], group_size=2, policy=policy)
    logs = updated(policy, optimizer, rollouts, GrpoConfig(group_size=2))
    assert logs["grpo/kept_rollouts"] == 0
    assert optimizer.state_dict()["state"] == {}
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


def test_an_uninformative_group_beside_an_informative_one_changes_nothing(make_rollouts, tiny_policy, updated):
    config, after = GrpoConfig(group_size=2, keep_low=0, keep_high=1), []
    both = make_rollouts([1, 0, 0, 0], [2, 2, 2, 2], group_size=2)
    first = ImaginedRollouts(
        both.image[:, :2], both.command[:, :2], both.instruction[:2], both.token[:, :2], both.logp[:, :2],
        both.valid[:, :2], both.success[:2], both.group[:2], both.task[:2],
    )  # fmt: skip
    for rollouts in (both, first):
        policy = tiny_policy()
        updated(policy, torch.optim.SGD(policy.parameters(), lr=0.1), rollouts, config)
        after.append(policy.state_dict())
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])


def test_an_update_makes_the_successful_rollouts_tokens_likelier(make_rollouts, tiny_policy, updated):
    policy, config = tiny_policy(), GrpoConfig(group_size=2, keep_low=0, keep_high=1)
    rollouts = make_rollouts([1, 0], [2, 2], group_size=2, policy=policy)
    updated(policy, torch.optim.SGD(policy.parameters(), lr=0.5), rollouts, config)
    gain = [
        policy.log_prob(
            PolicyObs(rollouts.image[:, r], rollouts.command[:, r], rollouts.instruction[:2]), rollouts.token[:, r]
        ).sum()
        - rollouts.logp[:, r].sum()
        for r in (0, 1)
    ]
    assert gain[0] > gain[1]


def test_a_loss_that_is_not_finite_stops_before_the_step(make_rollouts, tiny_policy, updated):
    policy = tiny_policy()
    rollouts = make_rollouts([1, 0], [2, 2], group_size=2, policy=policy)
    rollouts.logp[0, 0, 0, 0] = torch.nan
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    config = GrpoConfig(group_size=2, keep_low=0, keep_high=1)
    with pytest.raises(NonFiniteError, match="grpo: loss nan"):
        updated(policy, torch.optim.SGD(policy.parameters(), lr=0.5), rollouts, config)
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


@pytest.mark.parametrize("over", [{"group_size": 1}, {"keep_low": 0.9, "keep_high": 0.1}, {"keep_high": 1.5}])
def test_settings_without_signal_are_refused(over):
    with pytest.raises(SettingError, match=r"grpo"):
        GrpoConfig(**over)
