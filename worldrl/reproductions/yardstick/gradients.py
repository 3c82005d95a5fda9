"""Gradients of GRPO's loss under each part, on the same recorded batches, and the numbers that tell parts apart.

For K disjoint batches with gradients g_k and their mean ḡ::

    dispersion  D = tr Cov(g) / ‖ḡ‖² = (Σ_k ‖g_k‖² - K ‖ḡ‖²) / ((K - 1) ‖ḡ‖²)
    cosine      c_k = ⟨g_k, r_k⟩ / (‖g_k‖ ‖r_k‖), r_k = the reference gradient of all batches but k

The reference is plain group-mean REINFORCE: A = R - mean_g, every chunk weighs 1. Gradients that are noise alone have
E ‖ḡ‖² = tr Cov / K, so D near K says that K batches show no common direction.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.types import Likelihood, PolicyObs
from worldrl.methods.rl.advantages import mean_only
from worldrl.methods.rl.config import GrpoConfig, Parts
from worldrl.methods.rl.grpo import grpo, policy_learner
from worldrl.methods.rl.interfaces import AVERAGE, DEMONSTRATIONS, POLICY, TREE, needs_of
from worldrl.methods.rl.loop import iterate
from worldrl.methods.rl.method import Method
from worldrl.methods.rl.selection import everything
from worldrl.policies.token.policy import TokenPolicy
from worldrl.recipes.rl_parts import REGISTRIES
from worldrl.reproductions.yardstick.recorded import FRAMES, INFORMATIVE, PLACE, RecordedImagination

OWN = {"advantage": "group_std", "selection": "informative", "budget": "uniform", "loss": "clipped"}
"""Kinds of parts that are compared, and GRPO's own part of each, with which the others are."""
ABSENT = (TREE, AVERAGE, POLICY, DEMONSTRATIONS)
"""Needs that recorded groups of a policy do not meet."""
OF_VIDEOS = ("by_depth", "nft", "preference")
"""Losses of video models, and an advantage that without their trees is ``group_std``."""
REFERENCE = ("reference", "reinforce")
WHOLE = 10**9  # decisions of a gradient step at most: all of a batch

Part = tuple[str, str]
"""Kind and name."""


def compared_parts() -> list[Part]:
    """List the reference and every registered part that recorded groups can tell apart."""
    names = [(kind, name) for kind in OWN for name in REGISTRIES[kind].names() if name not in OF_VIDEOS]
    return [REFERENCE, *(part for part in names if not set(ABSENT) & set(needs_of(registered(part))))]


def registered(part: Part) -> Any:
    """Return a registered part."""
    kind, name = part
    return REGISTRIES[kind].get(name)


# --- one gradient -------------------------------------------------------------------------------------------------


class OneForward:
    """A policy that meets a batch's chunks once, for the gradients of all methods."""

    def __init__(self, policy: TokenPolicy, source: RecordedImagination) -> None:
        rollouts, self.device = source.batch, policy.device
        chunk, row = rollouts.valid.nonzero(as_tuple=True)
        token, temperature = rollouts.token[chunk, row], source.exploration.temperature
        self.logp = policy.likelihood(rollouts.observed(chunk, row), token, temperature=temperature).logp
        self.place = torch.zeros(rollouts.valid.numel(), dtype=torch.int64)
        self.place[rollouts.more[PLACE][chunk, row]] = torch.arange(len(chunk))
        self.parameters = [p for p in policy.parameters() if p.requires_grad]

    def likelihood(self, obs: PolicyObs, token: Tensor, *, temperature: float) -> Likelihood:
        """Log-probabilities of recorded chunks, which their place names."""
        return Likelihood(self.logp[self.place[obs.more[PLACE]]])

    def gradient(self, loss: Tensor) -> Tensor:
        """Gradient of a loss by all weights, as one row."""
        found = torch.autograd.grad(loss, self.parameters, retain_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in found])

    @property
    def nothing(self) -> Tensor:
        """The gradient where nothing is learned."""
        return torch.zeros(sum(p.numel() for p in self.parameters))


def make_method(part: Part, source: RecordedImagination, policy: TokenPolicy) -> Method:
    """Make GRPO with one other part, on the recorded starts; a budget shares out half of the rollouts."""
    kind, _ = part
    size = source.group_size // 2 if kind == "budget" else source.group_size
    config = GrpoConfig(groups=len(source.starts), group_size=size, minibatch=WHOLE)
    if part == REFERENCE:
        source = replace(source, length_normalise=False)
        chosen = {"advantage": mean_only, "selection": everything}
    else:
        chosen = {kind: registered(part)}
    return grpo(source, policy, config, parts=Parts(starts=lambda *_: source.starts, **chosen))


def gradient(
    part: Part, source: RecordedImagination, acting: TokenPolicy, seen: OneForward, number: int
) -> tuple[Tensor, Logs]:
    """Gradient of batch ``number`` at the weights of ``seen``, and what was noted; 0 where no chunk is kept."""
    method, logs = make_method(part, source, acting), Logs()
    method = replace(method, log_prob=replace(method.log_prob, policy=seen))  # pyright: ignore[reportArgumentType]
    found = [seen.gradient(loss) for loss in method.losses(number, logs)]
    return (found[0] if found else seen.nothing), logs


def moved(policy: TokenPolicy, batches: Sequence[RecordedImagination]) -> TokenPolicy:
    """Return the policy after a pass of GRPO over all batches, a gradient step for each."""
    learned = copy.deepcopy(policy)
    learner = policy_learner(learned, GrpoConfig())
    for number, source in enumerate(batches):
        iterate(learner, make_method(("loss", OWN["loss"]), source, learned), number)
    return learned


# --- many of them -------------------------------------------------------------------------------------------------


@dataclass
class Spread:
    """What is kept of a part's gradients over disjoint batches."""

    total: Tensor | None = None  # their sum, in float64
    squares: list[float] = field(default_factory=list[float])
    cosines: list[float] = field(default_factory=list[float])
    noted: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, gradient: Tensor, reference: Tensor, logs: Mapping[str, Tensor]) -> None:
        """Take in a batch's gradient beside the reference of the other batches."""
        row = gradient.double()
        self.total = row if self.total is None else self.total + row
        self.squares.append(float(row @ row))
        self.cosines.append(cosine(row, reference.double()))
        for name in (INFORMATIVE, FRAMES):
            self.noted.setdefault(name, []).append(float(logs[name]))

    def to_json(self) -> dict[str, Any]:
        """Numbers of the stage's result."""
        assert self.total is not None
        mean = self.total / len(self.squares)
        means = {name.partition("/")[2]: sum(values) / len(values) for name, values in self.noted.items()}
        return {**means, "dispersion": dispersion(self.squares, float(mean @ mean)), "cosines": self.cosines}


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of two rows; 0 where one has no direction."""
    size = a.norm() * b.norm()
    return float(a @ b / size) if size > 0 else 0.0


def dispersion(squares: Sequence[float], mean_square: float) -> float | None:
    """D from ‖g_k‖² of two or more batches and ‖ḡ‖²; None where the mean is 0."""
    count = len(squares)
    if mean_square == 0:
        return None
    return max(0.0, sum(squares) - count * mean_square) / ((count - 1) * mean_square)


def measure(
    batches: Sequence[RecordedImagination], policy: TokenPolicy, parts: Sequence[Part]
) -> dict[str, dict[str, Any]]:
    """Measure every part on every batch; by ``kind.name``. A loss is measured at weights that have moved."""
    seen = OneForward
    counts = torch.tensor([float(source.batch.valid.sum()) for source in batches])
    references = torch.stack(
        [gradient(REFERENCE, one, policy, seen(policy, one), k)[0] for k, one in enumerate(batches)]
    )
    whole, spreads = counts @ references, {part: Spread() for part in parts}
    later = moved(policy, batches)
    for number, source in enumerate(batches):
        others = whole - counts[number] * references[number]
        views = {False: seen(policy, source), True: seen(later, source)}
        for part, spread in spreads.items():
            found, logs = gradient(part, source, policy, views[part[0] == "loss"], number)
            spread.add(found, others, logs)
    return {".".join(part): spread.to_json() for part, spread in spreads.items()}
