"""Unit under test: ``rollout/drawing.py``, and that workers of the embedded suite start only where it found a back end."""

import os

import pytest

import worldrl.simulators.renderer as drawing
import worldrl_envs
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real import pool
from worldrl.rollout.real.rollouts import EmbeddedPlayer


@pytest.fixture
def machine(monkeypatch):
    """A machine on which these back ends draw; returns what was tried."""

    def make(*working, given=None):
        tried = []

        def renderer_name(python, timeout_s):
            tried.append(os.environ["MUJOCO_GL"])
            return "a renderer" if tried[-1] in working else ""

        def choose_backend(python, timeout_s, backends):
            tried.extend(backends)
            found = [name for name in backends if name in working]
            return (found or [None])[0], [f"{name}: no device" for name in backends if name not in working]

        monkeypatch.setattr(drawing, "renderer_name", renderer_name)
        monkeypatch.setattr(drawing, "choose_backend", choose_backend)
        monkeypatch.setattr(worldrl_envs, "GIVEN_BACKEND", given)
        monkeypatch.setattr(worldrl_envs, "CHOSEN_BACKENDS", set() if given else {"egl"})
        monkeypatch.setenv("MUJOCO_GL", given or "egl")
        return tried

    drawing.embedded_drawing.cache_clear()
    yield make
    drawing.embedded_drawing.cache_clear()


def test_one_look_per_process_where_the_first_back_end_draws(machine):
    tried = machine("egl")
    assert drawing.embedded_drawing() == drawing.embedded_drawing() == {"render": "egl", "renderer": "a renderer"}
    assert tried == ["egl"]


def test_workers_draw_with_the_next_back_end_unless_the_user_named_one(machine, capsys):
    machine("osmesa")
    assert drawing.embedded_drawing()["render"] == "osmesa"
    assert "rendering with osmesa (egl: no device)" in "".join(capsys.readouterr())
    assert os.environ["MUJOCO_GL"] == "osmesa"
    assert drawing.given_backend() == ""
    drawing.embedded_drawing.cache_clear()
    tried = machine("osmesa", given="egl")
    with pytest.raises(WorkerEnvironmentError, match=r"nothing renders here \(egl: no device\).*libegl1"):
        drawing.embedded_drawing()
    assert set(tried) == {"egl"}


def test_no_worker_starts_where_nothing_draws_and_nobody_asks_where_nothing_is_drawn(
    machine, specs, options, monkeypatch
):
    class StartedError(Exception):
        pass

    def start(worker):
        raise StartedError

    monkeypatch.setattr(pool.Worker, "_start", start)
    tried = machine()
    with pytest.raises(WorkerEnvironmentError, match="egl: no device; osmesa: no device"):
        next(EmbeddedPlayer(options).play([(spec, ExpertActor()) for spec in specs], record=True))
    tried.clear()
    with pytest.raises(StartedError):
        next(EmbeddedPlayer(options).play([(spec, ExpertActor()) for spec in specs], record=False))
    assert tried == []
