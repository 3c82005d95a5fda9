"""A tiny planner, three starts, and a reward whose optimum is known: bright images whose centre of light moves evenly."""

import pytest
import torch

from worldrl.methods.alignment.task import AlignmentConfig, AlignmentTask, Starts
from worldrl.rewards.mixing import mean_of_terms


class Light:
    """Mean brightness in [0, 1], and the negative jerk of the centre of light (pixels per frame³)."""

    def __init__(self, names=("bright", "even")):
        self.names = names
        self.seen = 0

    def score(self, videos):
        self.seen += videos.rows
        light = videos.frames.float().mean(dim=-1) / 255  # [N, T, Y, X]
        columns = torch.arange(light.shape[-1])
        centre = (light.sum(dim=2) * columns).sum(dim=2) / light.sum(dim=(2, 3)).clamp_min(1e-6)
        jerk = centre.diff(n=3, dim=1) if centre.shape[1] > 3 else centre[:, :1] * 0
        terms = {"bright": light[:, 1:].mean(dim=(1, 2, 3)), "even": -jerk.square().mean(dim=1)}
        return torch.stack([terms[name] for name in self.names], dim=1)


@pytest.fixture
def light():
    return Light


@pytest.fixture
def make_task(make_world_model, make_record):
    """Make an alignment task; ``over`` are shared settings."""

    def make(*, names=("bright",), mix=mean_of_terms, action=None, seed=0, spread=0.2, **over):
        records = [
            make_record(grey, task=task)
            for grey, task in ((60, "PickRedCube"), (120, "PickGreenCylinder"), (90, "PickRedCube"))
        ]
        small = {"iterations": 4, "prompts": 2, "group_size": 4, "chunks": 2, "learning_rate": 1e-3, "minibatch": 512}
        model = make_world_model(planning=True, spread=spread)
        config = AlignmentConfig(**(small | {"checkpoint_every": 2} | over))
        return AlignmentTask(model, Starts(records, action), Light(names), mix, 0.1, config, seed)

    return make
