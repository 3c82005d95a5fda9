"""Closed form of RAVL's and EDAC's critic gradient: four products per layer where autograd needs six.

The loss is L = Σ_i mean_b (Q_i − y)² + η L_div(g), with g_i = ∇_a Q_i. In a ReLU network the slopes D_l ∈ {0, 1} are
constants almost everywhere, so with x_0 = (s, a), z_l = x_{l−1} W_l + b_l, x_l = D_l z_l and Q = z_L:

    β_L = 1,                β_{l−1} = D_{l−1} β_l W_lᵀ           (β_l = ∂Q/∂z_l; g is the action's part of β_1 W_1ᵀ)
    u_0 = (0, ∂L_div/∂g),   u_l = D_l u_{l−1} W_l                (how L_div changes through g, forwards)
    c = 2 (Q − y)/B
    ∂L/∂W_l = (c x_{l−1} + η u_{l−1})ᵀ β_l,      ∂L/∂b_l = Σ_b c β_l

The β_l of g also carry the TD error back, and both terms share the product with β_l; autograd computes each twice.

Shapes legend: ``B`` rows, ``S`` observation, ``A`` action, ``N`` critics, ``H`` hidden width.
"""

import torch
from torch import Tensor, nn

from worldrl.core.interfaces import Logs
from worldrl.methods.offline.networks import StackedCritic
from worldrl.methods.offline.targets import td_loss

NORM_FLOOR = 1e-10  # added to ‖∇_a Q‖, so that a flat critic divides by something


def diversity_loss(gradient: Tensor) -> Tensor:
    """L_div of action gradients ``[N, B, A]``: a scalar in [−N/(N − 1), N]; N where all are parallel."""
    unit = gradient / (gradient.norm(dim=-1, keepdim=True) + NORM_FLOOR)
    together = unit.sum(dim=0).square().sum(dim=-1)  # [B], ‖Σ_i g_i‖²
    alone = unit.square().sum(dim=(0, 2))  # [B], Σ_i ‖g_i‖²
    return (together - alone).mean() / (len(gradient) - 1)


def diversity_slope(gradient: Tensor) -> Tensor:
    """∂L_div/∂g of :func:`diversity_loss`, ``[N, B, A]``.

    With n = ‖g‖ + ε and h_i = 2 (Σ_j ĝ_j − ĝ_i)/(B (N − 1)): ∂L/∂g = h/n − (h·g) g/(‖g‖ n²).
    """
    members, rows = gradient.shape[:2]
    length = gradient.norm(dim=-1, keepdim=True)
    unit = gradient / (length + NORM_FLOOR)
    slope = (unit.sum(dim=0) - unit) * (2 / (rows * (members - 1)))
    along = (slope * unit).sum(dim=-1, keepdim=True) * unit * (length > 0)
    return (slope - along * ((length + NORM_FLOOR) / length.clamp_min(NORM_FLOOR))) / (length + NORM_FLOOR)


@torch.no_grad()
def diverse_td_gradients(
    critic: StackedCritic, obs: Tensor, action: Tensor, target: Tensor, diversity: float
) -> tuple[dict[nn.Parameter, Tensor], Logs]:
    """Gradient of the loss with η = ``diversity`` by every weight and bias of a critic without layer normalisation."""
    layers = [(linear.weight, linear.bias) for linear in critic.linears]
    inputs = activations(layers, obs, action)
    q = torch.baddbmm(layers[-1][1], inputs[-1], layers[-1][0]).squeeze(-1)  # [N, B]
    betas = backward_slopes(layers, inputs)
    logs = {"critic/td": td_loss(q, target), "critic/q": q.mean()}
    error = ((q - target) * (2 / len(target))).unsqueeze(-1)  # c, [N, B, 1]
    left = [error * x for x in inputs]
    if diversity:
        gradient = betas[0] @ layers[0][0][:, obs.shape[1] :].mT  # [N, B, A]
        logs["critic/diversity"] = diversity_loss(gradient)
        for carried, through in zip(left, forward_slopes(layers, inputs, gradient), strict=True):
            carried.add_(through, alpha=diversity)
    gradients: dict[nn.Parameter, Tensor] = {}
    for (weight, bias), x, beta in zip(layers, left, betas, strict=True):
        gradients[weight] = x.mT @ beta
        gradients[bias] = error.mT @ beta
    return gradients, logs


def activations(layers: list[tuple[nn.Parameter, nn.Parameter]], obs: Tensor, action: Tensor) -> list[Tensor]:
    """Return x_0 .. x_{L−1}, the inputs of all layers, ``[N, B, in]``."""
    x = torch.cat((obs, action), dim=-1).expand(len(layers[0][0]), -1, -1)
    inputs = [x]
    for weight, bias in layers[:-1]:
        inputs.append(torch.baddbmm(bias, inputs[-1], weight).relu_())
    return inputs


def backward_slopes(layers: list[tuple[nn.Parameter, nn.Parameter]], inputs: list[Tensor]) -> list[Tensor]:
    """Return β_1 .. β_L: ∂Q/∂z_l, ``[N, B, out]``."""
    betas = [torch.ones_like(inputs[-1][..., :1])]
    for (weight, _), x in zip(layers[:0:-1], inputs[:0:-1], strict=True):
        betas.append(masked(betas[-1] @ weight.mT, x))
    return betas[::-1]


def forward_slopes(
    layers: list[tuple[nn.Parameter, nn.Parameter]], inputs: list[Tensor], gradient: Tensor
) -> list[Tensor]:
    """Return u_0 .. u_{L−1} of the module's equations, ``[N, B, in]``."""
    slope = diversity_slope(gradient)
    state = torch.zeros_like(inputs[0][..., : -slope.shape[-1]])
    through = [torch.cat((state, slope), dim=-1)]
    for (weight, _), x in zip(layers[:-1], inputs[1:], strict=True):
        through.append(masked(through[-1] @ weight, x))
    return through


def masked(slope: Tensor, activation: Tensor) -> Tensor:
    """D ⊙ slope: zero where the ReLU's output is zero, in one pass."""
    return torch.ops.aten.threshold_backward(slope, activation, 0)
