from collections.abc import Callable

import numpy as np
import pytest
import torch

from worldrl.core.rng import stream
from worldrl.core.types import Episode, PolicyObs
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig

SENTENCES = ("pick up the red cube", "lift the blue block", "put red on blue", "push the green ball", "wait")


@pytest.fixture
def statistics() -> PolicyStatistics:
    """Rotation about y never moves; everything else does."""
    low = torch.tensor([-1.0, -0.8, -0.9, -0.2, 0.1, -0.3, -1.0])
    high = torch.tensor([1.0, 0.9, 1.0, 0.2, 0.1, 0.3, 1.0])
    return PolicyStatistics(low, high, torch.zeros(7), torch.full((7,), 0.1))


@pytest.fixture
def config() -> TokenPolicyConfig:
    return TokenPolicyConfig(image_size=16, chunk_length=3, bins=9, width=8, blocks=1, keypoints=4, hidden=32)


@pytest.fixture
def policy(config: TokenPolicyConfig, statistics: PolicyStatistics) -> TokenPolicy:
    """A policy with spread-out weights, so that its distributions are far from uniform."""
    made = TokenPolicy(config, statistics)
    generator = stream(0, "test-weights")
    with torch.no_grad():
        for parameter in made.parameters():
            scale = 2.0 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.2
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return made.eval()


@pytest.fixture
def make_obs() -> Callable[..., PolicyObs]:
    def make(rows: int = 5, seed: int = 0) -> PolicyObs:
        generator = stream(seed, "test-obs")
        image = torch.randint(0, 256, (rows, 16, 16, 3), generator=generator, dtype=torch.uint8)
        command = 0.1 * torch.randn(rows, 7, generator=generator)
        return PolicyObs(image, command, [SENTENCES[row % len(SENTENCES)] for row in range(rows)])

    return make


@pytest.fixture
def make_episode() -> Callable[..., Episode]:
    def make(steps: int = 6, seed: int = 0, *, success: bool = True) -> Episode:
        draw = np.random.default_rng(seed)
        reward = np.zeros(steps, np.float32)
        if success:
            reward[-1] = 1
        action = draw.uniform(-1, 1, (steps, 7)).astype(np.float32)
        action[:, 4] = 0
        action[:, 6] = np.where(np.arange(steps) < steps // 2, -1, 1)
        return Episode(
            frames=draw.integers(0, 256, (steps + 1, 1, 16, 16, 3), dtype=np.uint8),
            state=np.zeros((steps + 1, 8), np.float32),
            command=draw.normal(0, 0.1, (steps + 1, 7)).astype(np.float32),
            action=action,
            reward=reward,
            contact=np.zeros(steps + 1, bool),
            terminated=success,
            truncated=not success,
            instruction="pick up the red cube",
            task="PickRedCube",
        )

    return make
