"""Another look, the same motion: recorded episodes replayed in the real simulator."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.restyle import STRUCTURE, check_structure, held_steps, restyle_dataset, restyled_specs
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec, spec_of

HOLD = 3


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "dataset"
    specs = [EpisodeSpec("PickRedCube", index, 7, source="expert") for index in range(2)]
    plans = [
        CollectPlan(ExpertActor(noise=0.1), specs[:1]),
        CollectPlan(ExpertActor(), specs[1:]),
    ]
    collect_dataset(folder, plans, EmbeddedPlayer(EnvOptions(image_size=16), workers=0), hold_steps=HOLD)
    return folder


def test_the_same_motion_under_another_look(recording, tmp_path):
    specs = restyle_dataset(recording, tmp_path / "restyled", ["sampled"], seed=3, workers=0)
    before, after = EpisodeDataset.open(recording), EpisodeDataset.open(tmp_path / "restyled")
    assert held_steps(before) == HOLD
    assert len(after) == len(before) == 2
    for old, new, spec in zip(before, after, specs, strict=True):
        for name in STRUCTURE:
            np.testing.assert_array_equal(getattr(old, name), getattr(new, name))
        assert np.abs(old.frames.astype(int) - new.frames).mean() > 2
        assert spec_of(new.meta).style == spec.style != "default"
        assert new.instruction == old.instruction
    assert len({spec.style for spec in specs}) == 2
    again = restyle_dataset(recording, tmp_path / "restyled", ["sampled"], seed=3, workers=0)
    assert again == specs


def test_looks_are_drawn_by_the_seed_from_what_is_named(recording):
    dataset = EpisodeDataset.open(recording)
    named = restyled_specs(dataset, ["dim", "warm"], seed=0)
    assert {spec.style for spec in named} <= {"dim", "warm"}
    draws = [tuple(s.style for s in restyled_specs(dataset, ["sampled"], seed=seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_a_replay_that_leaves_the_recorded_path_is_an_error(recording):
    dataset = EpisodeDataset.open(recording)
    first, second = dataset
    state = first.state.copy()
    state[4, 0] += 1e-6
    moved = EpisodeDataset.from_episodes(
        [replace(first, state=state), second], fps=dataset.fps, embodiment=dataset.embodiment
    )
    check_structure(dataset, dataset)
    with pytest.raises(ArtefactError, match=r"PickRedCube episode index 0, seed 7: .* state differ .* from frame 4"):
        check_structure(dataset, moved)
