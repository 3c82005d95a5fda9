"""Training in several real processes (gloo) and in several passes, against one process with the same batch.

Unit under test: ``worldrl.core.training.spread``, with the losses of policy, world model and inverse dynamics.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from worldrl.core.errors import SettingError
from worldrl.core.rng import Part, draw, stream
from worldrl.core.training.ranks import DeviceSettings, launcher
from worldrl.core.training.spread import refuse_batch_norm, spread
from worldrl.world_models.video.training_config import WorldModelTraining

SCRIPT = Path(__file__).with_name("spread_script.py")
IN_PASSES = ("toy", "policy", "idm")
MODELS = (*IN_PASSES, "world_model")


def launch(processes: int, *arguments: object) -> list[tuple[int, str]]:
    """Start the script as torchrun does; return each process's exit code and what it said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if processes > 1 else {}
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, *map(str, arguments)],
            env={**os.environ, **group, **({"RANK": str(rank)} if group else {}), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        return [(process.returncode, said) for process in started for said in [process.communicate(timeout=120)[1]]]
    finally:
        for process in started:
            process.kill()


def train(processes: int, folder: Path, *jobs: str) -> None:
    for code, said in launch(processes, folder, *jobs):
        assert code == 0, said
        assert "find_unused_parameters" not in said  # torch's warning where nothing is unused


def weights(folder: Path, what: str, rank: int = 0) -> dict[str, torch.Tensor]:
    return torch.load(folder / f"{what}-{rank}.pt", weights_only=True)


POOL, ATTENTION = "instruction_encoder.pool.bias", "instruction_encoder.qkv.bias"


def with_effect(name: str, value: torch.Tensor) -> torch.Tensor:
    """Leave out biases that move all logits of a softmax alike: their gradient is 0 but for rounding, which AdamW
    turns into steps."""
    if name == ATTENTION:
        query, _, shown = value.chunk(3)  # a key's bias
        return torch.cat([query, shown])
    return value[:0] if name == POOL else value


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        own, other = with_effect(name, found[name]), with_effect(name, value)
        torch.testing.assert_close(own, other, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """What one process learned alone and in two passes, and two processes together; ``grown`` began in one."""
    folder = tmp_path_factory.mktemp("spread")
    train(1, folder, *(f"{what},into=one" for what in MODELS),
          *(f"{what},into=passes,accumulate=2" for what in IN_PASSES),
          "toy,into=grown,steps=2", "toy,into=grown-parts,steps=2", "toy,into=again,checkpointing=true")  # fmt: skip
    train(2, folder, *(f"{what},into=two" for what in MODELS), "toy,into=both,accumulate=2", "toy,into=grown",
          *(f"{what},into=parts,sharded=true" for what in MODELS), "toy,into=grown-parts,sharded=true",
          "toy,into=all-parts,sharded=true,accumulate=2,checkpointing=true",
          "toy,into=fewer,sharded=true,steps=2")  # fmt: skip
    train(1, folder, "toy,into=fewer")
    return folder


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["two", "parts"])
@pytest.mark.parametrize("what", MODELS)
def test_two_processes_learn_what_one_learns(trained, what, how, rank):
    """Each with whole weights, or each with parts (FSDP2), which are whole again afterwards."""
    assert_near(weights(trained / how, what, rank), weights(trained / "one", what))


@pytest.mark.parametrize("what", IN_PASSES)
def test_two_passes_learn_what_one_learns(trained, what):
    assert_near(weights(trained / "passes", what), weights(trained / "one", what))


@pytest.mark.parametrize("how", ["both", "again", "grown", "grown-parts", "all-parts", "fewer"])
def test_recomputed_and_resumed_trainings_equal_it_too(trained, how):
    assert_near(weights(trained / how, "toy"), weights(trained / "one", "toy"))


@pytest.mark.parametrize("more", ["", ",sharded=true"])
def test_a_killed_process_ends_the_other_with_one_line_and_one_process_resumes(tmp_path, trained, more):
    (code, said), (killed, _) = launch(2, tmp_path, f"toy,dies=3{more}")
    assert (code, killed) == (2, -9), said
    lines = [line for line in said.splitlines() if line.startswith("worldrl: ")]
    assert lines == ["worldrl: process 0 of 2 stops: another process ended; start the same command again to resume"]
    assert "Traceback" not in said
    train(1, tmp_path, "toy")
    assert_near(weights(tmp_path, "toy"), weights(trained / "one", "toy"))


@pytest.mark.parametrize("more", ["", ",sharded=true"])
def test_ctrl_c_in_one_process_ends_both_after_the_step(tmp_path, more):
    assert [code for code, _ in launch(2, tmp_path, f"toy,interrupted=2{more}")] == [130, 130]
    assert (tmp_path / "toy" / "step-00000003").is_dir()


def test_the_launcher_of_the_resume_command_starts_worldrl_in_each_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", *launcher()[1:], "--help"]
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name)
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.count("train-policy") >= 2


def test_each_part_draws_the_rows_of_the_whole_batch():
    whole = torch.rand(6, 2, generator=stream(0, "rows"))
    parts = [draw(torch.rand, (2, 2), Part(number, 3).stream(0, "rows")) for number in range(3)]
    assert torch.equal(torch.cat(parts), whole)


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do():
    with pytest.raises(
        SettingError, match=r"training\.batch=10 does not divide into 4 .* give training\.batch=8 or 12$"
    ):
        spread(DeviceSettings(accumulate=4), batch=10)


def test_one_process_has_no_parts():
    with pytest.raises(SettingError, match=r"sharded=true divides .* and this is one; .*torchrun"):
        spread(DeviceSettings(sharded=True), batch=8)


def test_a_gradient_that_is_not_finite_is_named_in_parts_too(tmp_path):
    (code, said), _ = launch(2, tmp_path, "toy,sharded=true,breaks=2")
    assert code == 2, said
    assert "toy: gradient norm is nan at step 2 (first in net.out.bias)" in said


def test_batch_normalisation_is_refused():
    with pytest.raises(SettingError, match="idm: batch normalisation measures each part"):
        refuse_batch_norm("idm", {"net": nn.Sequential(nn.BatchNorm2d(3))})


def test_passes_of_a_world_model_are_refused():
    with pytest.raises(SettingError, match=r"training\.accumulate=2: .* give training\.accumulate=1$"):
        WorldModelTraining(accumulate=2)
