"""Unit under test: ``worldrl/methods/imitation/one_token_rollout.py``: the policy gradient of one drawn token, in closed form."""

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.methods.imitation.one_token_rollout import WRONG, rewarded_probability


@pytest.fixture
def logits():
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()


def label_of(*tokens):
    return torch.nn.functional.one_hot(torch.tensor(tokens), 5).double()


def loss_of(logits, label):
    logp = logits.log_softmax(-1)
    return -(rewarded_probability(logp, label) * logp).sum()


def test_the_gradient_is_that_of_the_expected_reward(logits):
    """∂L/∂z_a = -π(a) (R(a) - Σ_b π(b) R(b)): what REINFORCE finds in the mean over draws, with the mean as baseline."""
    label = label_of(0, 3, 4)
    loss_of(logits, label).backward()
    probability = logits.detach().softmax(-1)
    reward = torch.where(label > 0, 1.0, WRONG)
    expected = -probability * (reward - (probability * reward).sum(-1, keepdim=True))
    assert torch.allclose(logits.grad, expected)
    (again,) = torch.autograd.grad(-(logits.softmax(-1) * reward).sum(), logits)
    assert torch.allclose(logits.grad, again)


def test_it_agrees_with_drawn_tokens(logits):
    """The paper's estimate: K tokens from the policy, each weighed by its reward."""
    label, logp = label_of(1, 1, 2), logits.log_softmax(-1)
    drawn = torch.multinomial(
        logp.detach().exp(), 200_000, replacement=True, generator=torch.Generator().manual_seed(1)
    )
    reward = torch.where(label.gather(-1, drawn) > 0, 1.0, WRONG)
    estimate = -(reward * logp.gather(-1, drawn)).mean(dim=-1).sum()
    (found,) = torch.autograd.grad(estimate, logits, retain_graph=True)
    (exact,) = torch.autograd.grad(loss_of(logits, label), logits)
    assert torch.allclose(found, exact, atol=5e-3)


def test_a_token_that_the_policy_never_draws_hardly_pulls_unlike_in_cross_entropy():
    logits = torch.tensor([[8.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    label = label_of(2)
    (rolled,) = torch.autograd.grad(loss_of(logits, label), logits)
    (likelihood,) = torch.autograd.grad(-(label * logits.log_softmax(-1)).sum(), logits)
    assert rolled[0, 2] < 0
    assert rolled.abs().max() < 0.01 < 0.9 < likelihood.abs().max()


def test_rewards_follow_soft_labels_from_the_wrong_ones_to_one():
    logp = torch.full((1, 4), 0.25).log()
    soft = torch.tensor([[0.0, 0.2, 0.6, 0.2]])
    reward = rewarded_probability(logp, soft) / 0.25
    third = WRONG + (1 - WRONG) / 3
    assert reward[0].tolist() == pytest.approx([WRONG, third, 1.0, third])


def test_an_unknown_objective_is_refused_with_the_nearest():
    with pytest.raises(SettingError, match=r"likelihood, one_token_rollout, got 'one_token_rolout'.*one_token_rollout"):
        BehaviourCloning(objective="one_token_rolout")
