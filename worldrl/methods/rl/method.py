"""One method of RL in imagination, made of parts: the same for policies and for video models."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs, Stateful
from worldrl.methods.rl.budgets import uniform
from worldrl.methods.rl.control import Unchecked
from worldrl.methods.rl.interfaces import (
    AdvantageEstimator,
    BudgetAllocator,
    Collected,
    Decisions,
    Imagination,
    LogProb,
    PolicyLoss,
    Request,
    RewardMix,
    RolloutScheduler,
    SampleSelector,
    StartSampler,
    Trace,
    UpdateController,
)

P = TypeVar("P", bound=Callable[..., Any])


def fitted(part: P, **options: Any) -> P:
    """Bind those of a method's settings that a part has by the same name."""
    own = inspect.signature(part).parameters
    return partial(part, **{name: value for name, value in options.items() if name in own})  # type: ignore[return-value]


def at_once(source: Imagination[Any], request: Request, mix: RewardMix, logs: Logs) -> Collected[Any]:
    """Imagine and score all rows at once.

    Equation: none
    Paper: none
    """
    experience = source.imagine(request)
    collected = Collected(experience, source.score(experience))
    logs.update(source.reported(collected))
    return collected


def when_needed(method: "Method", iteration: int, logs: Logs) -> tuple[Request, Collected[Any]]:
    """Imagine an iteration's rollouts once it begins, with the weights of that moment."""
    request = method.request(iteration)
    return request, method.schedule(method.source, request, method.mix, logs)


@dataclass(frozen=True)
class Method:
    """A method of RL, for one imagination."""

    source: Imagination[Any]  # where experience comes from.
    prompts: int  # starts per iteration ``N``.
    rows: int  # rollouts per iteration ``B``.
    mix: RewardMix  # terms to values.
    advantage: AdvantageEstimator  # values to advantages.
    selection: SampleSelector  # advantages to weights.
    starts: StartSampler  # draws start records.
    log_prob: LogProb[Any]  # shows decisions to the network again.
    loss: PolicyLoss  # of each gradient step.
    budget: BudgetAllocator = uniform  # shares the rows out.
    schedule: RolloutScheduler = at_once  # lets the source imagine.
    control: UpdateController = field(default_factory=Unchecked)  # of the steps.
    prefix: str = "align"  # of the names in the log.
    kl: float = 0.0  # β, weight of the KL divergence to the starting weights where ``log_prob`` tells it.
    anchor: float = 0.0  # weight of that divergence on decisions that are not learned from.
    epochs: int = 1  # passes over each iteration's decisions.
    minibatch: int = 64  # decisions per gradient step at most; those of a pass have about as many.
    advantage_clip: float | None = None  # advantages are clipped to ± this; None leaves them.
    # when an iteration's rollouts are imagined, and by which weights: those of its beginning, or earlier ones (``staleness``).
    arrival: "Callable[[Method, int, Logs], tuple[Request, Collected[Any]]]" = when_needed
    # what a checkpoint must hold besides the trained weights.
    modules: Mapping[str, nn.Module | Stateful] = field(default_factory=dict[str, "nn.Module | Stateful"])

    def losses(self, iteration: int, logs: Logs) -> Iterator[Tensor]:
        """Imagine and weigh, then yield one loss per gradient step, computed with the weights of that moment."""
        request, collected = self.arrival(self, iteration, logs)
        decisions = self.decided(request, collected, logs)  # first: what is predicted of a start knows no outcome yet
        self.source.learned(request.starts, collected)
        yield from self.descend(decisions, iteration, logs)
        logs.update({f"{self.prefix}/{name}": value for name, value in self.control.after(iteration).items()})

    def request(self, iteration: int) -> Request:
        """Draw the iteration's starts and share its rows out among them."""
        records = self.source.records
        starts = self.starts(records, self.prompts, self.source.stream(iteration, "starts"))
        sizes = self.budget(records, starts, self.rows)
        if len(starts) != self.prompts or sizes.shape != starts.shape or sizes.min() < 1 or sizes.sum() != self.rows:
            raise SettingError(
                f"parts.starts, parts.budget: need {self.prompts} starts and {self.rows} rollouts of them in all, at least one of "
                f"each, got {starts.tolist()} and {sizes.tolist()}; mend the part or leave it out"
            )
        return Request.make(iteration, starts, sizes)

    def decided(self, request: Request, collected: Collected[Any], logs: Logs) -> Decisions | None:
        """Value the rollouts and keep the decisions that are learned from."""
        trace = self.source.trace(request, collected)
        if collected.explored is None:
            value = self.mix(collected.terms, trace.group)
        else:  # mixed together, so that both are on one scale
            terms, group = collected.explored
            both = self.mix(torch.cat([collected.terms, terms]), torch.cat([trace.group, group]))
            value, more = both.split([len(trace.group), len(group)])
            trace = replace(trace, explored=(more, group))
        advantage = _shaped("advantage", self.advantage(value, trace), trace)
        if self.advantage_clip is not None:
            advantage = advantage.clamp(-self.advantage_clip, self.advantage_clip)
        weight = self.selection(advantage, value, trace, self.source.stream(request.iteration, "trained"))
        kept = _shaped("selection", weight, trace) * trace.valid
        return self.source.decisions(collected.experience, advantage, kept, logs)

    def descend(self, decisions: Decisions | None, iteration: int, logs: Logs) -> Iterator[Tensor]:
        """Yield the loss of every minibatch under the weights at that moment."""
        rows = 0 if decisions is None else len(decisions)
        for number, index in enumerate(self.minibatches(rows, iteration)):
            assert decisions is not None
            loss, noted = self.loss_of(decisions.select(index), self.source.stream(iteration, "noising", number))
            logs.update({f"{self.prefix}/{name}": value for name, value in noted.items()})
            yield loss

    def loss_of(self, decisions: Decisions, generator: torch.Generator) -> tuple[Tensor, Logs]:
        """Loss of some decisions, and its numbers by plain names."""
        found = self.log_prob(decisions, generator)
        loss, noted = self.loss(found)
        if found.away is not None:
            away = found.away()  # after the loss: autograd adds gradients in the order of the graph
            loss, noted["kl"] = loss + self.kl * away, away.detach()
        if found.anchor is not None:
            held = found.anchor()
            loss, noted["anchor_kl"] = loss + self.anchor * held, held.detach()
        return loss, {**noted, "loss": loss.detach()}

    def minibatches(self, rows: int, iteration: int) -> Iterator[Tensor]:
        """Yield ``epochs`` shuffled passes over ``rows`` rows, in parts of about one size and at most ``minibatch``.

        A few rows left over would move the weights as far as a whole part: Adam's step does not shrink with them.
        """
        for epoch in range(self.epochs if rows else 0):
            order = torch.randperm(rows, generator=self.source.stream(iteration, "minibatches", epoch))
            yield from order.tensor_split(-(-rows // self.minibatch))


def _shaped(part: str, value: Tensor, trace: Trace) -> Tensor:
    """Require numbers ``[T, B]`` of a part, which another package may have written."""
    if value.shape != trace.valid.shape:
        wanted = list(trace.valid.shape)
        raise SettingError(
            f"parts.{part}: needs numbers [T, B] = {wanted}, got {list(value.shape)}; mend the part or leave it out"
        )
    return value
