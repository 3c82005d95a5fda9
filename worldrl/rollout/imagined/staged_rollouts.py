"""Staged visual future rollouts (MIND-V, 2512.06628): propose a stage, score it, keep the best, continue from there.

A planner proposes ``K`` continuations of a video and a reward scores the videos so far. The best one is kept if it is
good enough; otherwise others are proposed, up to ``attempts`` times. The next stage continues from it. One stage over
the whole length is best-of-K rejection sampling.

Mixed values are comparable within a group only, so a plan's proposals of all attempts at a stage are scored together.

Shapes legend: ``N`` plans, ``K`` proposals of each, ``M`` proposals in all, ``P`` reward terms, ``T`` imagined frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.interfaces import RewardMix, VideoReward
from worldrl.core.rng import row_streams
from worldrl.core.types import Imagined, ImaginedVideos, ResetRecord, first_frames
from worldrl.world_models.video.following import roll_forward


class Planner(Protocol):
    """A video model without actions, such as a planning :class:`~worldrl.world_models.video.model.VideoWorldModel`."""

    def start(self, records: Sequence[ResetRecord]) -> Any:
        """Begin one video per record."""
        ...

    def imagine(self, state: Any, action: None, *, generators: Sequence[torch.Generator]) -> tuple[Any, Imagined]:
        """Imagine one chunk more in every row."""
        ...

    def decode(self, latent: Tensor, first: Tensor) -> Tensor:
        """Decode latents ``[B, T, c, h, w]`` of rows with these first frames: uint8 ``[B, T, Y, X, 3]``."""
        ...

    def restore(self, data: dict[str, Any]) -> Any:
        """Rebuild a state from its ``state_dict``."""
        ...


@dataclass
class StagedConfig:
    """Settings of staged rollouts."""

    proposals: int = 4  # continuations ``K`` per plan and attempt.
    stages: int = 1  # how often the best is chosen.
    stage_chunks: int = 4  # chunks per stage.
    attempts: int = 1  # how often a stage may be proposed until it is accepted; the best of all is kept if none is.
    # smallest value of each named reward term at which a stage is accepted. With none named, the best proposal is kept,
    # whatever its reward.
    min_reward: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        require_at_least_one(self, ("proposals", "stages", "stage_chunks", "attempts"), of="staged")
        if self.attempts > 1 and not self.min_reward:
            raise SettingError(
                f"staged.attempts: {self.attempts} attempts need something to fail by; give staged.min_reward.TERM=VALUE, or more "
                "staged.proposals"
            )


@dataclass(frozen=True)
class StagedPlans:
    """Chosen plans.

    ``videos`` are as rewards need them, with what rewards have read from them where there was nothing to choose.
    ``latent`` is float32 ``[N, T, c, h, w]``, ``state`` the planner's after it, ``terms`` the finished plans' ``[N,
    P]``. ``accepted`` bool ``[stages, N]`` is None where ``min_reward`` names no term. ``attempts`` int64 ``[stages,
    N]`` counts those needed, ``chunks`` those imagined in all: the cost.
    """

    videos: ImaginedVideos
    latent: Tensor
    state: Any
    terms: Tensor
    accepted: Tensor | None
    attempts: Tensor
    chunks: int

    @property
    def frames(self) -> Tensor:
        """Frames uint8 ``[N, 1 + T, Y, X, 3]``; frame 0 is the recorded one."""
        return self.videos.frames


def staged_rollouts(
    planner: Planner,
    reward: VideoReward,
    mix: RewardMix,
    records: Sequence[ResetRecord],
    config: StagedConfig,
    *,
    frame_s: float,
    seed: int,
) -> StagedPlans:
    """Plan from every one of the ``N`` records.

    ``reward`` scores videos from their beginning to the end of the stage; ``mix`` makes one number of its terms,
    comparable among a plan's proposals. Imagined frames are ``frame_s`` seconds apart. ``seed`` is the root of the
    proposals' noise; a plan's proposals do not depend on the other plans. Raises SettingError (``min_reward`` names a
    term that the reward does not have, or there is no record).
    """
    if unknown := sorted(set(config.min_reward) - set(reward.names)):
        raise SettingError(
            f"staged.min_reward: the reward has no term {unknown[0]!r}; it has {', '.join(reward.names)}"
        )
    if not records:
        raise SettingError("staged rollouts need at least one record, got none")
    return _Stages(planner, reward, mix, records, config, frame_s, seed).run()


@dataclass(frozen=True)
class _Proposals:
    """Proposals of one stage; ``plan`` int64 ``[M]`` numbers the plan of each.

    ``videos`` are the scored ones, and None where they come from several attempts.
    """

    plan: Tensor
    state: Any
    latent: Tensor
    terms: Tensor
    videos: ImaginedVideos | None

    def join(self, planner: Planner, others: _Proposals) -> _Proposals:
        more = others.state.state_dict()
        state = planner.restore({n: torch.cat([part, more[n]]) for n, part in self.state.state_dict().items()})
        rest = {n: torch.cat([getattr(self, n), getattr(others, n)]) for n in ("plan", "latent", "terms")}
        return _Proposals(state=state, videos=None, **rest)


@dataclass(frozen=True)
class _Stages:
    planner: Planner
    reward: VideoReward
    mix: RewardMix
    records: Sequence[ResetRecord]
    config: StagedConfig
    frame_s: float
    seed: int

    def run(self) -> StagedPlans:
        state = self.planner.start(self.records)
        latent, terms, chunks, videos = None, torch.empty(0), 0, None
        accepted, attempts = [], []
        for stage in range(self.config.stages):
            made, tries = self._propose_until_accepted(state, latent, stage)
            best, good = self._choose(made)
            state, latent, terms = made.state.select(best), made.latent[best.to(made.latent.device)], made.terms[best]
            # With one proposal of each, the scored video is the chosen one and need not be decoded again.
            videos = made.videos if self.config.proposals == 1 else None
            chunks += len(made.plan) * self.config.stage_chunks
            accepted.append(good)
            attempts.append(tries)
        assert latent is not None  # there is at least one stage
        if videos is None:
            videos = self._videos(latent, torch.arange(len(self.records)))
        found = torch.stack(accepted) if self.config.min_reward else None
        return StagedPlans(videos, latent, state, terms, found, torch.stack(attempts), chunks)

    def _propose_until_accepted(self, state: Any, latent: Tensor | None, stage: int) -> tuple[_Proposals, Tensor]:
        """Propose for every plan, then again for those without a proposal that is good enough."""
        waiting = torch.arange(len(self.records))
        tries = torch.ones(len(self.records), dtype=torch.int64)
        made = self._propose(state, latent, waiting, (stage, 0))
        for attempt in range(1, self.config.attempts):
            waiting = (~self._choose(made)[1]).nonzero()[:, 0]
            if not len(waiting):
                break
            tries[waiting] += 1
            made = made.join(self.planner, self._propose(state, latent, waiting, (stage, attempt)))
        return made, tries

    def _propose(self, state: Any, latent: Tensor | None, plans: Tensor, where: tuple[int, int]) -> _Proposals:
        """Imagine ``K`` continuations of each of ``plans``, and score the videos."""
        rows = plans.repeat_interleave(self.config.proposals)
        generators = [
            generator
            for plan in plans.tolist()
            for generator in row_streams(self.seed, ("staged", *where, plan), self.config.proposals)
        ]
        now, video = state.select(rows), [] if latent is None else [latent[rows.to(latent.device)]]
        rolled = roll_forward(self.planner, now, self.config.stage_chunks, lambda *_: None, lambda _: generators)
        for now, imagined in rolled:  # noqa: B007, it is what comes after the last chunk
            video.append(imagined.latent)
        whole = torch.cat(video, dim=1)
        videos = self._videos(whole, rows)
        return _Proposals(rows, now, whole, self.reward.score(videos).float().cpu(), videos)

    def _choose(self, made: _Proposals) -> tuple[Tensor, Tensor]:
        """Return the row of each plan's best proposal int64 ``[N]``, and whether it is good enough, bool ``[N]``.

        The best is one of those that are good enough, or of all where none is.
        """
        value, good = self.mix(made.terms, made.plan), self._good(made.terms)
        best, found = [], []
        for plan in range(len(self.records)):
            mine = (made.plan == plan).nonzero()[:, 0]
            fit = mine[good[mine]]
            found.append(bool(len(fit)))
            chosen = fit if len(fit) else mine
            best.append(chosen[value[chosen].argmax()])
        return torch.stack(best), torch.tensor(found)

    def _good(self, terms: Tensor) -> Tensor:
        least = [self.config.min_reward.get(name, -torch.inf) for name in self.reward.names]
        return (terms >= torch.tensor(least)).all(dim=1)

    def _videos(self, latent: Tensor, plan: Tensor) -> ImaginedVideos:
        records = [self.records[i] for i in plan.tolist()]
        first = torch.from_numpy(np.stack([record.memory[-1] for record in records]))[:, None]
        frames = torch.cat([first, self.planner.decode(latent, first_frames(records)).cpu()], dim=1)
        return ImaginedVideos(frames, latent.cpu(), self.frame_s, [record.instruction for record in records])
