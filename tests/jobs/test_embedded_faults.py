"""What the embedded suite cannot do ends in one line and exit 2: names, sizes, and a machine that cannot draw."""

import os
import subprocess
import sys

import pytest

from worldrl.core.errors import SettingError
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.data.restyle import RestyleSettings
from worldrl.jobs.policy.evaluate import EvaluateSettings
from worldrl.rollout.real.specs import IMAGE_SIZES, EnvOptions
from worldrl_envs.rendering import MAX_SIZE, MIN_SIZE


@pytest.mark.parametrize("size", [1, 4, 7, 513, 1024, 65_536])
def test_sizes_that_the_suite_does_not_render_are_refused_at_once(size):
    for make in (lambda: CollectSettings(image_size=size), lambda: EnvOptions(image_size=size)):
        with pytest.raises(SettingError, match=r"image_size: must be in 8\.\.512"):
            make()
    assert IMAGE_SIZES == (MIN_SIZE, MAX_SIZE)


@pytest.mark.parametrize("style", ["neon", "sampled-", "sampled--1", "sampled-x", "Dim", "default "])
def test_unknown_styles_are_refused_at_once(style):
    for make in (
        lambda: CollectSettings(styles=["default", style]),
        lambda: EvaluateSettings(policy="p", style=style),
        lambda: RestyleSettings(styles=["sampled", style]),
    ):
        with pytest.raises(SettingError, match=f"styles?: unknown style '{style}'"):
            make()


def test_styles_that_exist_are_taken_and_none_is_refused():
    CollectSettings(styles=["default", "dim", "sampled-7"])
    RestyleSettings(styles=["sampled"])
    RestyleSettings(styles=["sampled", "dim"])
    RestyleSettings(styles=[], by="image")
    for settings in (CollectSettings, RestyleSettings):
        with pytest.raises(SettingError, match="at least one style"):
            settings(styles=[])


@pytest.mark.parametrize(
    "variables",
    [{"MUJOCO_GL": "egl", "__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent"}, {"MUJOCO_GL": "nonsense"}],
)
def test_a_machine_that_cannot_draw_is_one_line_without_workers(tmp_path, variables):
    ended = subprocess.run(
        [sys.executable, "-m", "worldrl", "collect", "preset=tiny", f"run_dir={tmp_path / 'run'}"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    assert len(said) == 1
    assert said[0].startswith("worldrl: rendering: no OpenGL context can be made")
    assert "apt-get install -y libegl1" in said[0]
