"""Groups of episodes of one motion: those of single episodes where there are no copies."""

from dataclasses import replace

import pytest

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.motion.align_world_model import AlignWorldModelSettings, split_starts
from worldrl.rollout.real.motions import shuffled_motions


def test_without_copies_every_episode_is_a_group_in_the_order_of_the_stream(push_episodes, robot):
    order = [[int(place)] for place in numpy_stream(3, "held-out").permutation(len(push_episodes))]
    dataset = EpisodeDataset.from_episodes(push_episodes, fps=20, embodiment=robot)
    assert shuffled_motions(push_episodes, seed=3, name="held-out") == order
    assert shuffled_motions(dataset, seed=3, name="held-out") == order


def test_an_episode_given_twice_is_one_group(push_episodes):
    groups = shuffled_motions([*push_episodes, *map(replace, push_episodes)], seed=3, name="held-out")
    assert sorted(map(tuple, groups)) == [(place, place + 8) for place in range(8)]


def test_starts_of_one_motion_stay_on_one_side(push_episodes, world_model):
    twice = [*push_episodes, *map(replace, push_episodes)]
    settings = AlignWorldModelSettings(held_out=0.25, conditioning="actions")
    parts = split_starts(twice, settings, world_model)
    assert [len(part) for part in parts] == [12, 4]
    begun = [{record.command.tobytes() + record.reference.tobytes() + action.numpy().tobytes()
              for record, action in zip(part.records, part.action, strict=True)} for part in parts]  # fmt: skip
    assert not begun[0] & begun[1]
    with pytest.raises(SettingError, match="of 1 motions leaves none"):
        split_starts([push_episodes[0], replace(push_episodes[0])], settings, world_model)
