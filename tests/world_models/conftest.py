"""Both dynamics backends, for the tests that hold of either, episodes of two cameras, and a training cut short."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.world_models.video.config import DynamicsKind


@pytest.fixture(params=[kind.value for kind in DynamicsKind])
def kind(request) -> str:
    """Name of a backend."""
    return request.param


def lagging(episode):
    """A measured state that is where the command was two steps before, and 1 cm off."""
    before = np.concatenate([episode.command[:1], episode.command[:1], episode.command[:-2]])
    finger = 0.02 * (1 - before[:, 6:])
    return np.concatenate([before[:, :6] + 0.01, finger, -finger], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def two_views(push_episodes):
    """The pushed squares, with a second camera that sees them upside down, and a state that lags behind the command."""
    return [
        replace(
            episode,
            frames=np.concatenate([episode.frames, episode.frames[:, :, ::-1]], axis=1),
            cameras=("scene", "wrist"),
            state=lagging(episode),
        )
        for episode in push_episodes
    ]


class StopError(Exception):
    """Raised in the middle of a training."""


@pytest.fixture
def resumed(monkeypatch, tmp_path, same_tree):
    """Check that a training cut short ends with the same bits; returns them, and how often ``module.name`` was called.

    The first ``stop`` calls of that function return; the next one ends the training, which then resumes.
    """

    def check(train, module, name: str, *, stop: int):
        true, calls = getattr(module, name), []

        def run(folder, stop=None):
            def counted(*args, **named):
                calls.append(args)
                if len(calls) - 1 == stop:
                    raise StopError
                return true(*args, **named)

            calls.clear()
            monkeypatch.setattr(module, name, counted)
            return dict(train(tmp_path / folder).state_dict())

        whole, count = run("whole"), len(calls)
        with pytest.raises(StopError):
            run("cut", stop)
        same_tree(run("cut"), whole)
        return whole, count

    return check
