"""One-Token Rollout: the policy gradient of drawing each token once, where the demonstration rewards the draw.

    L(θ) = -Σ_a π̄(a | s) R(a) log π_θ(a | s),    R(a) = 1 for the demonstrated token, -0.1 for any other

with π̄ the policy without gradient, so that ∂L/∂z_a = -π(a) (R(a) - Σ_b π(b) R(b)). Cross-entropy pulls hardest at tokens
that the policy would never draw; this loss leaves them alone. The paper draws K tokens. An action has few bins, so the
sum over all of them is taken, the limit of large K. Beside soft labels R rises from -0.1 to 1 with the label.

Source: Ming et al., One-Token Rollout (2509.26313).

Shapes legend: ``...`` tokens, each over ``bins``.
"""

from torch import Tensor

WRONG = -0.1
"""Reward of a token that was not demonstrated; our choice."""


def rewarded_probability(logp: Tensor, label: Tensor, wrong: float = WRONG) -> Tensor:
    """π̄(a) R(a) of log-probabilities and labels ``[..., bins]``; no gradient flows through it."""
    reward = wrong + (1 - wrong) * label / label.amax(dim=-1, keepdim=True)
    return logp.detach().exp() * reward
