"""How demonstrations are split: by motion, so that nothing held out is trained on in another visual style."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.rng import numpy_stream
from worldrl.methods.imitation.demonstrations import split_episodes
from worldrl.rollout.real.specs import COPY_OF, EpisodeSpec, motion_key


@pytest.fixture
def episodes(push_episode):
    """Ten recordings without a spec, as external ones are."""
    return [push_episode(number, 6) for number in range(10)]


def placed(episode, index, style="default"):
    spec = EpisodeSpec(episode.task, index, 3, style=style, source="expert")
    return replace(episode, frames=episode.frames // (1 + len(style)), meta=spec.to_json())


def test_without_copies_the_split_is_that_of_single_episodes(episodes):
    order = numpy_stream(4, "split-episodes").permutation(10)
    kept, apart = sorted(order[3:].tolist()), sorted(order[:3].tolist())
    for given in (episodes, [placed(episode, n) for n, episode in enumerate(episodes)]):
        train, held_out = split_episodes(given, 0.3, seed=4)
        assert [id(e) for e in train] == [id(given[n]) for n in kept]
        assert [id(e) for e in held_out] == [id(given[n]) for n in apart]
    assert [id(e) for e in split_episodes(episodes, 0.3, seed=5)[1]] != [id(episodes[n]) for n in apart]
    assert split_episodes(episodes[:1], 0.9, seed=0)[1] == []


@pytest.mark.parametrize("kind", ["given twice", "restyled in the simulator", "recoloured"])
def test_copies_stay_on_one_side(episodes, kind):
    if kind == "given twice":
        given = [*episodes, *episodes]
    elif kind == "recoloured":
        digests = [motion_key(episode)[0] for episode in episodes]
        given = [
            *episodes,
            *(replace(e, frames=255 - e.frames, meta={COPY_OF: d}) for e, d in zip(episodes, digests, strict=True)),
        ]
    else:
        given = [placed(e, n, style) for style in ("default", "sampled-1") for n, e in enumerate(episodes)]
    train, held_out = split_episodes(given, 0.3, seed=1)
    assert (len(train), len(held_out)) == (14, 6)
    shown = [{e.action.tobytes() for e in part} for part in (train, held_out)]
    assert not shown[0] & shown[1]
    assert np.concatenate([e.action for e in held_out]).shape == (36, 7)
