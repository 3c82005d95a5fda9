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
from worldrl.core.storage.log import Progress
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
BLOCK = 64  # chunks whose gradients are held at once
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
    """A policy that meets a batch once: losses are functions of the log-probabilities ``[M, L, A]`` of its ``M`` chunks."""

    def __init__(self, policy: TokenPolicy, source: RecordedImagination) -> None:
        rollouts, self.device, self.policy = source.batch, policy.device, policy
        chunk, row = rollouts.valid.nonzero(as_tuple=True)
        self.obs, self.token = rollouts.observed(chunk, row), rollouts.token[chunk, row]
        self.temperature = source.exploration.temperature
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.place = torch.zeros(rollouts.valid.numel(), dtype=torch.int64)
        self.place[self.obs.more[PLACE]] = torch.arange(len(chunk))
        with torch.no_grad():
            logp = policy.likelihood(self.obs, self.token, temperature=self.temperature).logp
        self.logp = logp.requires_grad_()

    def likelihood(self, obs: PolicyObs, token: Tensor, *, temperature: float) -> Likelihood:
        """Log-probabilities of recorded chunks, which their place names."""
        return Likelihood(self.logp[self.place[obs.more[PLACE]]])

    def slope(self, loss: Tensor | None) -> Tensor:
        """Gradient of a loss by the log-probabilities; 0 where nothing is learned."""
        return torch.zeros_like(self.logp) if loss is None else torch.autograd.grad(loss, self.logp)[0]

    def by_row(self, slopes: Sequence[Tensor]) -> Tensor:
        """Gradients by all weights ``[n, P]`` of losses with these slopes: one backward pass for each."""
        logp = self.policy.likelihood(self.obs, self.token, temperature=self.temperature).logp
        return torch.stack([self._flat(logp, slope) for slope in slopes])

    def by_chunk(self, slopes: Sequence[Tensor]) -> Tensor:
        """The same for slopes that are equal over a chunk's tokens, as at ratio 1: one backward pass for each chunk.

        ∇L = Σ_m s_m ∇ Σ_tokens log π(chunk m), so dozens of losses cost as much as a few.
        """
        scale = torch.stack([slope.mean(dim=(1, 2)) for slope in slopes])  # [n, M]
        total = torch.zeros(len(slopes), sum(p.numel() for p in self.parameters))
        for block in torch.arange(len(self.token)).split(BLOCK):
            total += scale[:, block] @ torch.stack([self._of_chunk(int(m)) for m in block])
        return total

    def _of_chunk(self, m: int) -> Tensor:
        obs = self.obs.take(lambda value: value[m : m + 1], [self.obs.instruction[m]])
        logp = self.policy.likelihood(obs, self.token[m : m + 1], temperature=self.temperature).logp
        return self._flat(logp, torch.ones_like(logp))

    def _flat(self, logp: Tensor, slope: Tensor) -> Tensor:
        found = torch.autograd.grad(logp, self.parameters, slope, retain_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in found])


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


def slope(
    part: Part, source: RecordedImagination, acting: TokenPolicy, seen: OneForward, number: int
) -> tuple[Tensor, Logs]:
    """Slope of the loss on batch ``number`` at the weights of ``seen``, and what was noted."""
    method, logs = make_method(part, source, acting), Logs()
    method = replace(method, log_prob=replace(method.log_prob, policy=seen))  # pyright: ignore[reportArgumentType]
    return seen.slope(next(method.losses(number, logs), None)), logs


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
    references = [reference(one, policy, number) for number, one in enumerate(batches)]
    spreads, later = {part: Spread() for part in parts}, moved(policy, batches)
    losses, others = ([part for part in parts if (part[0] == "loss") is kind] for kind in (True, False))
    with Progress("gradients", total=len(batches), unit="batches") as progress:
        for number, source in enumerate(batches):
            beside = torch.stack([row for k, row in enumerate(references) if k != number]).sum(dim=0)
            for chosen, seen in ((losses, OneForward(later, source)), (others, OneForward(policy, source))):
                if chosen:
                    slopes, logs = zip(*(slope(part, source, policy, seen, number) for part in chosen), strict=True)
                    rows = seen.by_row(slopes) if chosen is losses else seen.by_chunk(slopes)
                    for part, row, noted in zip(chosen, rows, logs, strict=True):
                        spreads[part].add(row, beside, noted)
            progress.advance()
    return {".".join(part): spreads[part].to_json() for part in parts}


def reference(source: RecordedImagination, policy: TokenPolicy, number: int) -> Tensor:
    """Gradient of plain REINFORCE on a batch, times its chunks, so that a sum over batches is one large batch."""
    seen = OneForward(policy, source)
    return len(seen.token) * seen.by_row([slope(REFERENCE, source, policy, seen, number)[0]])[0]
