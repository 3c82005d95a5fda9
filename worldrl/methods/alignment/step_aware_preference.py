"""Step-aware preference optimisation (SPO, Liang et al. 2024, 2406.04314) for the denoising steps of videos.

At every noisy step each row draws ``k`` candidates from the same sample. Each is rewarded by itself, and where the best is
clearly ahead of the worst the pair is learned; the row continues from a random candidate, so that preferences do not pile up::

    ρ = exp(log p_θ(x' | x) - log p_ref(x' | x)),  clipped to [1 - ε, 1 + ε]
    L = -log sigmoid(β (log ρ_best - log ρ_worst))

SPO trains a model that prefers between noisy samples. Here a candidate is rewarded by the clean chunk that the network sees in
it, after the finished chunks of its video: one more evaluation per candidate, and the reward that everything else uses.

Shapes legend: ``R`` rows, ``k`` candidates of each, ``M`` pairs.
"""

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs, RewardMix
from worldrl.core.rng import stream
from worldrl.diffusion.flow import expand_sigma
from worldrl.diffusion.sde import Denoising, RatioRule, Schedule, gaussian_log_prob, make_schedule
from worldrl.methods.alignment.imagination import VideoImagination, video_method
from worldrl.methods.alignment.task import AlignmentTask, judge
from worldrl.methods.alignment.videos import ChunkSteps, Key, Surroundings, key_noise
from worldrl.methods.rl.config import Parts
from worldrl.methods.rl.interfaces import Collected, Evaluated, Request, Trace
from worldrl.methods.rl.losses import preference
from worldrl.methods.rl.method import Method, fitted
from worldrl.world_models.video.flow_transformer import FlowTransformer


def _ratio() -> RatioRule:
    return RatioRule(clip=0.1)


@dataclass
class StepAwarePreferenceConfig:
    """Settings of step-aware preference optimisation."""

    denoising: Denoising = field(default_factory=Denoising)  # steps and noise.
    # reduction of the log-probability and the range that goes with it.
    ratio: RatioRule = field(default_factory=_ratio)
    candidates: int = 4  # ``k`` per row and noisy step.
    # smallest difference between the best and the worst candidate's share in a softmax over the ``k`` rewards.
    gap: float = 0.3
    beta: float = 10.0  # β.
    first_step: int = 0  # noisy steps before this one (within a chunk) draw no candidates.

    def __post_init__(self) -> None:
        if self.candidates < 2:
            raise SettingError(f"step_aware_preference.candidates must be at least 2, got {self.candidates}")
        if not 0 <= self.gap < 1:
            raise SettingError(f"step_aware_preference.gap must be in [0, 1), got {self.gap}")


def candidate_values(mix: RewardMix, terms: Tensor, group: Tensor, count: int) -> Tensor:
    """Mix the terms ``[R k, K]`` of ``count`` candidates of each row to values ``[R, k]``, among all of its prompt.

    Mixed row by row, every row would have a clear best and worst one, however alike its candidates are.
    """
    return mix(terms, group.repeat_interleave(count)).view(-1, count)


def preferred(value: Tensor, gap: float) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the best and worst candidates of values ``[R, k]``, and the rows whose softmax gap is above ``gap``."""
    share = value.softmax(dim=1)
    best, worst = share.max(dim=1), share.min(dim=1)
    return best.indices, worst.indices, best.values - worst.values > gap


@dataclass(frozen=True)
class Pairs(ChunkSteps):
    """Preferred pairs of next samples."""

    best: Tensor  # the next sample that is preferred.
    worst: Tensor  # the one that is not.


def join_pairs(parts: list[Pairs]) -> Pairs:
    """Put pairs one after the other."""
    rest = {name: torch.cat([getattr(p, name) for p in parts]) for name in ("step", "x", "best", "worst")}
    return Pairs(**rest, around=Surroundings.join([p.around for p in parts]))


@dataclass
class Drawing:
    """Videos in the making: their keys, prompts and starts, the latents of the finished chunks ``[R, T, c, h, w]``, and what was found on the way."""

    keys: list[Key]
    group: Tensor
    start: Tensor
    iteration: int
    latent: Tensor
    pairs: list[Pairs] = field(default_factory=list[Pairs])
    evaluations: int = 0


@dataclass(frozen=True)
class CandidateVideos(VideoImagination):
    """Videos that draw candidates at every noisy step; the clear pairs among these are learned from."""

    # how many candidates, and how clear.
    config: StepAwarePreferenceConfig = field(default_factory=StepAwarePreferenceConfig)

    @torch.no_grad()
    def imagine(self, request: Request) -> Drawing:
        """Denoise a group of videos, with candidates at every noisy step."""
        task, model = self.task, self.task.model
        start = request.starts[request.group]
        state = model.start([task.starts.records[i] for i in start.tolist()])
        action = None if task.starts.action is None else task.starts.action[start].to(model.device)
        drawing = Drawing(request.keys, request.group, start, request.iteration, state.memory[:, :0])
        for chunk in range(task.config.chunks):
            span = slice(chunk * model.chunk_length, (chunk + 1) * model.chunk_length)
            condition, commands = model.chunk_condition(state, None if action is None else action[:, span])
            finished = self._chunk(drawing, chunk, Surroundings(state.reference, state.memory, condition))
            state = model.remember(state, finished, commands)
            drawing.latent = torch.cat([drawing.latent, finished], dim=1)
        return drawing

    def trace(self, request: Request, collected: Collected[Drawing]) -> Trace:
        """Return the prompts; pairs are chosen while the videos are drawn."""
        group = collected.experience.group
        return Trace(request.iteration, group, torch.ones(1, len(group), dtype=torch.bool))

    def decisions(self, experience: Drawing, advantage: Tensor, weight: Tensor, logs: Logs) -> Pairs | None:
        """Collect the pairs; whole videos are not compared."""
        logs["align/pairs"] = torch.tensor(float(sum(map(len, experience.pairs))))
        if not experience.pairs:
            return None
        logs["cost/trained_steps"] = 2 * logs["align/pairs"]
        return join_pairs(experience.pairs)

    def _chunk(self, drawing: Drawing, chunk: int, around: Surroundings) -> Tensor:
        """Denoise one chunk of every row ``[R, F, c, h, w]``, adding to the drawing's pairs and evaluations."""
        model, schedule = self.task.model, self.schedule
        x = key_noise(self.task.seed, drawing.keys, ("chunk", chunk), model.noise_shape, model.device)
        for step in range(schedule.steps):
            rows = torch.full((len(x),), step, device=x.device)
            mean, std = schedule.transition(x, around.predict(self.task.dynamics, x, schedule.level(rows)), rows)
            drawing.evaluations += len(rows)
            if step not in schedule.noisy:
                x = mean
                continue
            count = self.config.candidates if step >= self.config.first_step else 1
            drawn = self._candidates(mean, std, drawing.keys, (chunk, step), count)
            if count > 1:
                drawing.evaluations += len(rows) * count
                drawing.pairs += self._pairs(drawing, around, x, drawn, rows)
            x = self._go_on(drawn, drawing.iteration, chunk, step)
        return x

    def _pairs(self, drawing: Drawing, around: Surroundings, x: Tensor, drawn: Tensor, step: Tensor) -> list[Pairs]:
        """Make the clear pairs of candidates ``[R, k, F, c, h, w]`` drawn from ``x``; an empty list where there is none."""
        best, worst, clear = preferred(self._judge(around, drawn, drawing, int(step[0])), self.config.gap)
        if not bool(clear.any()):
            return []
        each, device = torch.arange(len(x), device=x.device), x.device
        pairs = Pairs(step, x, around, drawn[each, best.to(device)], drawn[each, worst.to(device)])
        return [pairs.select(clear.nonzero()[:, 0])]

    def _candidates(self, mean: Tensor, std: Tensor, keys: list[Key], where: tuple[int, int], count: int) -> Tensor:
        noise = [
            key_noise(self.task.seed, keys, ("step", *where, n), mean.shape[1:], mean.device) for n in range(count)
        ]
        spread = expand_sigma(std, mean)
        return torch.stack([mean + spread * each for each in noise], dim=1)

    def _judge(self, around: Surroundings, drawn: Tensor, drawing: Drawing, step: int) -> Tensor:
        """Value candidates ``[R, k]`` by the clean chunk that the network sees in each, after its video so far."""
        rows, count = drawn.shape[:2]
        mine = torch.arange(rows, device=drawn.device).repeat_interleave(count)
        level = self.schedule.level(torch.full((rows * count,), step + 1, device=drawn.device))
        clean = around.select(mine).predict(self.task.dynamics, drawn.flatten(0, 1), level)
        whole = torch.cat([drawing.latent[mine], clean], dim=1)
        terms = judge(self.task, whole, drawing.start[mine.cpu()])
        return candidate_values(self.task.mix, terms, drawing.group, count)

    def _go_on(self, drawn: Tensor, iteration: int, chunk: int, step: int) -> Tensor:
        generator = stream(self.task.seed, "candidates", iteration, chunk, step)
        which = torch.randint(drawn.shape[1], (len(drawn),), generator=generator).to(drawn.device)
        return drawn[torch.arange(len(drawn), device=drawn.device), which]


@dataclass(frozen=True)
class PairLogProb:
    """Log-probabilities of both samples of each pair, best first ``[M, 2]``.

    Equation: log N(x'; mean(x, v_θ), std²) of the best and the worst candidate
    Paper: SPO (2406.04314)
    """

    dynamics: FlowTransformer  # with gradient.
    reference: FlowTransformer  # the starting weights.
    schedule: Schedule  # of the steps.
    reduce: str  # over a step's numbers, ``mean`` or ``sum``.

    def __call__(self, decisions: Pairs, generator: torch.Generator) -> Evaluated:
        """Show pairs to both networks."""
        now = self._log_probs(self.dynamics, decisions)
        before = self._log_probs(self.reference, decisions).detach()
        one = torch.ones(len(decisions), device=now.device)
        return Evaluated(now, before, torch.stack([one, -one], dim=1), one)

    def _log_probs(self, dynamics: FlowTransformer, pairs: Pairs) -> Tensor:
        clean = pairs.around.predict(dynamics, pairs.x, self.schedule.level(pairs.step))
        mean, std = self.schedule.transition(pairs.x, clean, pairs.step)
        return torch.stack([gaussian_log_prob(x, mean, std, self.reduce) for x in (pairs.best, pairs.worst)], dim=1)


def step_aware_preference(task: AlignmentTask, config: StepAwarePreferenceConfig, parts: Parts | None = None) -> Method:
    """Prefer the better of two candidates at every noisy step.

    Equation: L = -log sigmoid(β (log ρ_best - log ρ_worst)), ρ against the starting weights
    Paper: SPO (2406.04314)
    """
    schedule = make_schedule(config.denoising, task.model.config.dynamics.shift)
    reference, parts = copy.deepcopy(task.dynamics).requires_grad_(False), parts or Parts()
    return video_method(
        CandidateVideos(task, schedule, config.ratio.reduce, config=config),
        PairLogProb(task.dynamics, reference, schedule, config.ratio.reduce),
        fitted(parts.loss or preference, beta=config.beta, clip=config.ratio.range),
        parts,
    )
