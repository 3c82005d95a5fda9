"""The command ``worldrl play`` as users start it: refusals in one line, Ctrl-C, and a result."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from worldrl import cli
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.jobs.world_model import play
from worldrl.world_models.video.model import VideoWorldModel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def web():
    for package in ("starlette", "uvicorn", "websockets"):
        pytest.importorskip(package, reason="the extra play brings it")


def refused(capsys, tmp_path, *settings):
    assert cli.main(["play", f"run_dir={tmp_path / 'run'}", *settings]) == 2
    said = capsys.readouterr().err
    assert said.startswith("worldrl: ")
    return said


def test_without_the_web_packages_one_line_names_the_extra(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    said = refused(capsys, tmp_path)
    assert "pip install -c constraints.txt -e '.[play]'" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_port_in_use_is_refused_before_anything_is_loaded(web, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(play, "open_world_model", None)
    with socket.create_server((play.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port: {port} on 127.0.0.1 is in use" in refused(capsys, tmp_path, f"port={port}")


def test_a_world_model_of_another_robot_is_refused(web, capsys, tmp_path, world_model):
    other = VideoWorldModel(world_model.config, replace(world_model.embodiment, control_hz=10))
    other.save(tmp_path / "other")
    said = refused(capsys, tmp_path, f"world_model={tmp_path / 'other'}")
    assert "was made for another robot" in said


def test_a_world_model_of_joint_targets_is_refused(web, capsys, tmp_path, world_model):
    from worldrl.rollout.real.embedded import embedded_embodiment

    VideoWorldModel(world_model.config, embedded_embodiment(["BimanualLiftPot"])).save(tmp_path / "two")
    assert "14 joint targets; keys drive one arm" in refused(capsys, tmp_path, f"world_model={tmp_path / 'two'}")


def test_a_policy_of_another_image_size_is_refused(web, capsys, tmp_path, world_model, tiny_policy):
    world_model.save(tmp_path / "model")
    tiny_policy(image_size=24).save(tmp_path / "policy")
    said = refused(capsys, tmp_path, f"world_model={tmp_path / 'model'}", f"policy={tmp_path / 'policy'}")
    assert "image 24x24" in said
    assert "image 16x16" in said


def test_a_machine_that_renders_nothing_is_refused(web, capsys, tmp_path, monkeypatch):
    def nothing():
        raise WorkerEnvironmentError("rendering: nothing renders here (EGL: no driver); install EGL")

    monkeypatch.setattr(play, "embedded_drawing", nothing)
    assert "nothing renders here" in refused(capsys, tmp_path)


def test_untrained_weights_are_refused(capsys, tmp_path):
    assert "untrained" in refused(capsys, tmp_path, "world_model=scratch")


def test_ctrl_c_ends_with_a_result_while_a_tab_is_open(web, tmp_path, world_model):
    from websockets.sync.client import connect

    world_model.save(tmp_path / "model")
    words = [
        sys.executable,
        "-m",
        "worldrl",
        "play",
        f"run_dir={tmp_path / 'run'}",
        f"world_model={tmp_path / 'model'}",
    ]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'envs'}", "OMP_NUM_THREADS": "1", "MUJOCO_GL": "egl"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", process.stderr.readline())[1])
            with connect(f"ws://127.0.0.1:{port}/drive", max_size=None, open_timeout=60, close_timeout=5) as client:
                client.recv(timeout=60)
                client.send('{"do": "start", "task": "PickRedCube", "index": 0}')
                client.recv(timeout=120)
                client.send('{"do": "drive", "action": [0, 0, 0, 0, 0, 0, -1]}')
                client.recv(timeout=120)
                process.send_signal(signal.SIGINT)
                _, rest = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "1 chunks driven, 0 drives saved" in rest
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["command"] == "play"
    assert result["metrics"]["chunks"] == result["metrics"]["sessions"] == 1
    assert result["metrics"]["chunk_ms"]["p95"] > 0
