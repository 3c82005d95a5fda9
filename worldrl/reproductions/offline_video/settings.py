"""Settings of ``offline-video``: what is recorded, and how its agents learn."""

from dataclasses import dataclass

from worldrl.core.errors import SettingError
from worldrl.recipes.run import choose_tasks
from worldrl.settings import fraction, non_negative, positive

CHUNK = 8  # Control steps of a chunk of the bundled world model; an agent's action is one chunk


@dataclass(frozen=True)
class LatentSettings:
    """Settings of data and agents."""

    seeds: int = 3
    task: str = "PickRedCube"  # name in the embedded suite
    episodes: int = 200
    noise: float = 0.3  # of the expert's actions
    goal_offset: float = 0.02  # standard deviation of the expert's goal error (m)
    updates: int = 20_000
    batch: int = 256  # rows per update; packed rows of NEUBAY
    hidden: int = 256  # width of two hidden layers
    rate: float = 3e-4  # learning rate; of RAVL's and NEUBAY's actors while they clone
    # Learning rate of RAVL's and NEUBAY's actors afterwards, lower than the critics', whose errors they exploit.
    actor_rate: float = 3e-5
    # Updates of RAVL and NEUBAY that clone the data: a random policy succeeds in no imagined episode and learns
    # nothing.
    clone_steps: int = 2000
    discount: float = 0.95  # γ per chunk
    # Rate τ of the targets. A success at the end of an episode reaches its beginning after some 1 / (τ (1 - γ))
    # updates.
    polyak: float = 0.01
    horizon: int = 4  # k of RAVL, chunks
    starts: int = 512  # rollouts per generation of RAVL; NEUBAY begins half as many, which are longer
    # Updates between two generations of RAVL's and NEUBAY's rollouts; rare ones no longer match the actor.
    refresh: int = 250
    generations: int = 20  # number of generations in the buffer
    real_ratio: float = 0.5  # share of recorded rows in RAVL's batches
    critics: int = 10  # of RAVL
    # Η of RAVL. With 1 the actor's noise grew and imagined success fell from 61 to 48 % in a thousand updates (seed
    # 100).
    diversity: float = 0.0
    window: int = 4  # chunks of a trajectory
    features: int = 256  # of the trajectory model's first level
    model_steps: int = 10_000  # of its training
    trajectories: int = 1024  # per generation
    trajectory_share: float = 15 / 16  # of the rows of TD3+BC's batches; the rest is recorded
    guidance: float = 1.0  # coefficient c
    memory: int = 128  # features of NEUBAY's memories
    tests: int = 100  # true episodes
    # Α of TD3+BC. Cloning is a mean over an action's numbers, so it constrains each of many less than each of the three
    # to six of the published 2.5.
    alpha: float = 0.05
    # Fixed α of RAVL and NEUBAY. A success is worth 1 at most, the entropy of a chunk many times that.
    temperature: float = 0.001
    components: int = 8  # number that stands for a chunk in all agents' actions; 0 uses all numbers of a chunk
    keypoints: int = 32  # number that agents observe; 0 shows the latents themselves
    keypoint_steps: int = 800  # of their training; the best on held-out episodes is used
    stride: int = 1  # control steps between starts of an episode's trajectories; must divide a chunk's 8

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
