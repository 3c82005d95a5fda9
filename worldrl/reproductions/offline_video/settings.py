"""Settings of ``offline-video``: what is recorded, and how its agents learn."""

from __future__ import annotations

from dataclasses import dataclass

from worldrl.core.errors import SettingError
from worldrl.recipes.run import choose_tasks
from worldrl.settings import fraction, non_negative, positive

CHUNK = 8
"""Control steps of a chunk of the bundled world model; an agent's action is one chunk."""


@dataclass(frozen=True)
class LatentSettings:
    """Settings of data and agents.

    Attributes:
        task: name in the embedded suite.
        noise: of the expert's actions.
        goal_offset: standard deviation of the expert's goal error (m).
        batch: rows per update; packed rows of NEUBAY.
        hidden: width of two hidden layers.
        rate: learning rate; of RAVL's and NEUBAY's actors while they clone.
        actor_rate: learning rate of RAVL's and NEUBAY's actors afterwards, lower than the critics', whose errors they exploit.
        clone_steps: updates of RAVL and NEUBAY that clone the data: a random policy succeeds in no imagined episode and learns
            nothing.
        discount: γ per chunk.
        polyak: rate τ of the targets. A success at the end of an episode reaches its beginning after some 1 / (τ (1 - γ))
            updates.
        horizon: k of RAVL, chunks.
        starts: rollouts per generation of RAVL; NEUBAY begins half as many, which are longer.
        refresh: updates between two generations of RAVL's and NEUBAY's rollouts; rare ones no longer match the actor.
        generations: number of generations in the buffer.
        real_ratio: share of recorded rows in RAVL's batches.
        critics: of RAVL.
        diversity: η of RAVL. With 1 the actor's noise grew and imagined success fell from 61 to 48 % in a thousand updates
            (seed 100).
        window: chunks of a trajectory.
        features: of the trajectory model's first level.
        model_steps: of its training.
        trajectories: per generation.
        trajectory_share: of the rows of TD3+BC's batches; the rest is recorded.
        guidance: coefficient c.
        memory: features of NEUBAY's memories.
        tests: true episodes.
        alpha: α of TD3+BC. Cloning is a mean over an action's numbers, so it constrains each of many less than each of the
            three to six of the published 2.5.
        temperature: fixed α of RAVL and NEUBAY. A success is worth 1 at most, the entropy of a chunk many times that.
        components: number that stands for a chunk in all agents' actions; 0 uses all numbers of a chunk.
        keypoints: number that agents observe; 0 shows the latents themselves.
        keypoint_steps: of their training; the best on held-out episodes is used.
        stride: control steps between starts of an episode's trajectories; must divide a chunk's 8.
    """

    seeds: int = 3
    task: str = "PickRedCube"
    episodes: int = 200
    noise: float = 0.3
    goal_offset: float = 0.02
    updates: int = 20_000
    batch: int = 256
    hidden: int = 256
    rate: float = 3e-4
    actor_rate: float = 3e-5
    clone_steps: int = 2000
    discount: float = 0.95
    polyak: float = 0.01
    horizon: int = 4
    starts: int = 512
    refresh: int = 250
    generations: int = 20
    real_ratio: float = 0.5
    critics: int = 10
    diversity: float = 0.0
    window: int = 4
    features: int = 256
    model_steps: int = 10_000
    trajectories: int = 1024
    trajectory_share: float = 15 / 16
    guidance: float = 1.0
    memory: int = 128
    tests: int = 100
    alpha: float = 0.05
    temperature: float = 0.001
    components: int = 8
    keypoints: int = 32
    keypoint_steps: int = 800
    stride: int = 1

    def __post_init__(self) -> None:
        choose_tasks([self.task], None)
        non_negative("change.keypoints", self.keypoints)
        non_negative("change.components", self.components)
        positive("change.temperature", self.temperature)
        positive("change.polyak", self.polyak)
        fraction("change.polyak", self.polyak)
        fraction("change.trajectory_share", self.trajectory_share)
        if self.stride < 1 or CHUNK % self.stride:
            raise SettingError(f"change.stride must divide the {CHUNK} control steps of a chunk, got {self.stride}")
