"""LIBERO's worker without LIBERO.

Units under test: ``workers/libero_observation.py``, ``workers/rotations.py``, ``workers/libero_package.py``, ``workers/libero_facts.py``.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import worldrl.workers.libero.worker as libero
from worldrl.workers.libero import facts
from worldrl.workers.libero.observation import turn
from worldrl.workers.libero.package import LiberoError, assets_digest, find_assets, sources_digests, task_instruction
from worldrl.workers.link.rotations import DOWN, axis_angle, rotation_vector


def test_horizons_are_the_published_ones_and_lerobots_is_named():
    assert [facts.horizon(name) for name in facts.SUITES] == [220, 280, 300, 520, 400]
    assert facts.horizon("libero_spatial@lerobot") == 280
    held, changed = ([f"{name}@held" for name in names] for names in (facts.SUITES, facts.PRO_SUITES))
    assert facts.suite_names() == [*facts.SUITES, "libero_spatial@lerobot", *held, *facts.PRO_SUITES, *changed]
    assert (facts.horizon("libero_goal@held"), facts.horizon("libero_pro_10_swap@held")) == (300, 520)
    with pytest.raises(KeyError):
        facts.horizon("libero_goal@lerobot")


def test_an_image_is_turned_not_mirrored():
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    turned = turn(picture)
    np.testing.assert_array_equal(turned, np.rot90(picture, 2))
    np.testing.assert_array_equal(turn(turned), picture)
    assert not np.array_equal(turned, picture[::-1])


def test_axis_angle_keeps_the_long_way_round():
    quarter = np.array([0, 0, np.sin(np.pi / 4), np.cos(np.pi / 4)])
    np.testing.assert_allclose(axis_angle(quarter), [0, 0, np.pi / 2])
    # The same rotation, written with the other sign, is 3π/2 about the other axis: not folded, as robosuite has it.
    np.testing.assert_allclose(axis_angle(-quarter), [0, 0, -3 * np.pi / 2])
    np.testing.assert_array_equal(axis_angle(np.array([0, 0, 0, 1.0])), np.zeros(3))
    np.testing.assert_array_equal(axis_angle(np.array([0, 0, 0, 1.0000001])), np.zeros(3))


def test_command_rotation_is_zero_straight_down_and_smooth_around_it():
    np.testing.assert_allclose(rotation_vector(DOWN @ DOWN.T), np.zeros(3))
    for tilt in ([0.1, 0, 0], [0, -0.2, 0], [0.05, 0.04, 1.3]):
        tilted = Rotation.from_rotvec(tilt).as_matrix() @ DOWN
        np.testing.assert_allclose(rotation_vector(tilted @ DOWN.T), tilt, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("put_the_bowl_on_the_plate", "put the bowl on the plate"),
        ("KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet", "close the top drawer of the cabinet"),
        ("LIVING_ROOM_SCENE2_pick_up_the_milk", "pick up the milk"),
    ],
)
def test_instructions(name, sentence):
    assert task_instruction(name) == sentence


def test_assets_digest_sees_content_and_names_but_not_notes(tmp_path):
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "a.xml").write_text("<a/>")
    base = assets_digest(tmp_path)
    (tmp_path / "README.md").write_text("note")
    assert assets_digest(tmp_path) == base
    (tmp_path / "scenes" / "a.xml").write_text("<b/>")
    assert assets_digest(tmp_path) != base
    assert find_assets(tmp_path / "package", str(tmp_path)) == tmp_path


def test_missing_assets_say_where_and_what_to_do(tmp_path):
    with pytest.raises(LiberoError, match=r"package/assets.*worldrl setup libero assets="):
        find_assets(tmp_path / "package", "")


def test_a_private_fork_has_other_digests(tmp_path, monkeypatch):
    """Gravity of -3 mended somebody's initial poses (LIBERO#131); versions in the metadata stay as they were."""
    root, robosuite = tmp_path / "libero", tmp_path / "robosuite"
    files = {
        root / "bddl_files" / "libero_goal" / "a.bddl": "(define (problem a))",
        root / "bddl_files" / "libero_spatial" / "b.bddl": "(define (problem b))",
        root / "envs" / "problem.py": "GRIP = 1",
        robosuite / "models" / "base.xml": "<option gravity='0 0 -9.81'/>",
        robosuite / "models" / "finger.stl": "mesh",
        robosuite / "models" / "base.pyc": "compiled",
        robosuite / "__init__.py": "",
    }

    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    before, seen = sources_digests(root, root / "bddl_files" / "libero_goal"), {}
    for path, text in files.items():
        path.write_text(text + " ")
        after = sources_digests(root, root / "bddl_files" / "libero_goal")
        seen[path.name] = [name for name in before if after[name] != before[name]]
        path.write_text(text)
    assert sources_digests(root, root / "bddl_files" / "libero_goal") == before
    assert seen == {
        "a.bddl": ["bddl"],
        "b.bddl": [],  # another suite's
        "problem.py": ["libero"],
        "base.xml": ["robosuite"],
        "finger.stl": ["robosuite"],
        "base.pyc": [],
        "__init__.py": ["robosuite"],
    }


def test_each_environment_draws_resets_and_ends_in_its_own_gl_context():
    """robosuite 1.4 drew with the objects of the environment that was made last: libero_object, 1.6 grey levels off."""
    seen: list[str] = []

    def note(name, result=None):
        return lambda *_, **__: (seen.append(name), result)[1]

    drawn = SimpleNamespace(gl_ctx=SimpleNamespace(make_current=note("own context")))
    sim = SimpleNamespace(
        _render_context_offscreen=drawn,
        render=note("draw", np.zeros((2, 2, 3), np.uint8)),
        model=SimpleNamespace(geom_id2name=str, ngeom=0),
    )
    inner = SimpleNamespace(object_property_initializers=[], objects_dict={})
    env = SimpleNamespace(
        sim=sim, env=inner, seed=int, reset=note("reset"), set_init_state=note("state"), close=note("close")
    )
    simulation = libero.Simulation(SimpleNamespace(image_size=2), env, np.zeros((1, 3)))
    simulation._begin(np.zeros(3))
    simulation._image("agentview")
    simulation.close()
    assert seen == ["own context", "reset", "state", "own context", "draw", "own context", "close"]
    sim._render_context_offscreen = None  # without cameras there is none
    simulation.close()
    assert seen[-1] == "close"


class Resting:
    """Stands in for a simulation of the settle probe's task: two objects, so far apart after so many steps."""

    def __init__(self, apart_m):
        self.apart_m, self.steps, self.closed = apart_m, 0, False

    def reset(self, init_id, seed, *, render):
        self.steps = facts.SETTLE_STEPS
        return {}

    def step(self, action, *, render):
        assert action.tolist() == list(facts.NO_OP)
        self.steps += 1

    def position(self, name):
        settled = self.steps == facts.SETTLE_PROBE.steps
        upper = name == facts.SETTLE_PROBE.upper
        return np.array([self.apart_m * upper * settled, 0.0, 0.9 + 0.05 * upper])

    def close(self):
        self.closed = True


@pytest.mark.parametrize(("apart_m", "holds"), [(0.0145, True), (0.037, False)])
def test_the_settle_probe_refuses_a_physics_in_which_a_stored_state_does_not_hold(apart_m, holds, monkeypatch):
    """14.5 mm on MuJoCo 3.3.7, 37 mm on 3.8.1, where the bowl leans: 86 points of one task."""
    place, resting = facts.SETTLE_PROBE, Resting(apart_m)
    suite = object.__new__(libero.Libero)
    suite.packages, suite.cameras = {"mujoco": "3.8.1"}, ()
    suite._states_folder = suite._tasks = Path()
    suite._names = {place.suite: [f"task_{number}" for number in range(10)]}
    monkeypatch.setattr(libero, "load_suite", lambda path, suite: {f"task_{place.task}": np.zeros((50, 3))})
    monkeypatch.setattr(libero.Libero, "_environment", lambda self, task: None)
    monkeypatch.setattr(libero, "Simulation", lambda suite, env, states: resting)
    if holds:
        assert suite.probe()["distance_mm"] == pytest.approx(14.5)
    else:
        with pytest.raises(
            LiberoError, match=r"stored state 0 of task_5 does not hold.* 37 mm .*at most 25 mm.*3\.8\.1"
        ):
            suite.probe()
    assert resting.closed
