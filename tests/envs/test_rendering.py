"""Unit under test: ``rendering.py`` and ``engine.py``: where nothing can be drawn there is an error, not a hang."""

import os
import subprocess
import sys

import pytest

FORK_AFTER = """
import sys, time
import gymnasium, mujoco, numpy as np, worldrl_envs

def make():
    return gymnasium.make("worldrl/PickRedCube-v0", image_size=8)

def draw_with_mujoco():
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='.2'/></worldbody></mujoco>")
    with mujoco.Renderer(model, 8, 8) as renderer:
        renderer.update_scene(mujoco.MjData(model))
        renderer.render()

if sys.argv[1] == "drawn":
    make().reset(seed=0)
elif sys.argv[1] == "closed":
    env = make()
    env.reset(seed=0)
    env.close()
elif sys.argv[1] == "mujoco":
    draw_with_mujoco()
elif sys.argv[1] == "made":
    env = make()
envs = gymnasium.make_vec(
    "worldrl/PickRedCube-v0", num_envs=2, vectorization_mode="async", image_size=8, vector_kwargs={"context": "fork"}
)
try:
    obs, _ = envs.reset(seed=0)
    print("instruction:", obs["instruction"][1])
except Exception as error:
    print(type(error).__name__, error)
envs.close(terminate=True)
"""


def run(program, *arguments, **variables):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("before", ["drawn", "closed", "mujoco"])
def test_a_fork_after_drawing_is_an_error_within_seconds(before):
    child = run(FORK_AFTER, before)
    assert "RenderingError rendering: this process was forked" in child.stdout, child.stderr
    assert "vector_kwargs={'context': 'spawn'}" in child.stdout


def test_a_fork_before_anything_was_drawn_works():
    assert "instruction: pick up the red cube" in run(FORK_AFTER, "made").stdout


DRAW = """
from worldrl_envs.errors import EnvsError
try:
    import gymnasium, worldrl_envs
    gymnasium.make("worldrl/PickRedCube-v0", image_size=8).reset(seed=0)
except EnvsError as error:
    print(type(error).__name__, error)
"""
BROKEN = [
    {"MUJOCO_GL": "egl", "__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent"},
    {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"},
    {"MUJOCO_GL": "nonsense"},
    {"MUJOCO_GL": "disable"},
    {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "99"},
    {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "x"},
]


@pytest.mark.parametrize("variables", BROKEN)
def test_a_machine_that_cannot_draw_names_what_to_install(variables):
    said = run(DRAW, **variables).stdout
    assert said.startswith(
        f"RenderingError rendering: no OpenGL context can be made (MUJOCO_GL is {variables['MUJOCO_GL']}; "
    )
    assert "apt-get install -y libegl1" in said
    assert len(said.splitlines()) == 1
