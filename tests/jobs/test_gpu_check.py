"""Units under test: ``worldrl/recipes/gpu`` and ``worldrl gpu-check``: outcomes, processes, resume, the file's schema."""

import json
import os
import signal
import time
from functools import partial

import pytest
import torch

from worldrl.cli import main
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.jobs.environment import gpu_check
from worldrl.jobs.environment.gpu_check import GpuCheckSettings
from worldrl.jobs.environment.gpu_check_report import line
from worldrl.recipes.gpu import kernels, learning, rows
from worldrl.recipes.gpu.checks import ROWS, Check, SkippedError, checks, row_name
from worldrl.recipes.gpu.outcome import FAILED, MEASURED, SKIPPED, Number, Outcome, median, rate, read_gpu_check
from worldrl.recipes.gpu.process import attempt, run_apart
from worldrl.recipes.gpu.rows import Row

CPU = torch.device("cpu")
TWO = {"a number": Number(2.0, "s")}


# -- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ROWS)
def test_names_are_those_of_stages_and_each_is_once(size):
    names = [check.name for check in checks(size)]
    assert len(set(names)) == len(names)
    assert all(name == name.lower().replace(" ", "-") for name in names)
    assert {"grpo-iteration", "updates-compiled", "updates-graphed", "mujoco-warp", "fsdp-resume"} <= set(names)


def test_some_checks_and_other_batches_may_be_asked_for():
    found = [check.name for check in checks("full", batches=[1, 2], only=["imagine-gpu-edm", "grpo"])]
    assert found == [
        *(f"imagine-gpu-edm_unet-{dtype}-{n}" for dtype in ("float32", "bfloat16") for n in (1, 2)),
        "grpo-iteration",
    ]
    with pytest.raises(SettingError, match="only: no check begins with 'grppo'"):
        GpuCheckSettings(size="tiny", only=["grppo"])


def test_a_row_is_named_by_all_that_it_measures():
    assert row_name(Row("gpu", "train", 128, compiled=True)) == "train-gpu-flow_transformer-bfloat16-128-compiled"
    assert row_name(Row("Wan2.1-T2V-1.3B", "train lora", 8)) == "train-lora-wan2.1-t2v-1.3b-bfloat16-8"


def test_a_sharded_training_resumes_to_equal_weights():
    (check,) = checks("tiny", only=["fsdp-resume"])
    found = attempt(check, CPU)
    assert found.status == "measured", found.reason
    assert found.numbers["processes"].value == 2
    assert found.numbers["time of a step"].value > 0


def test_one_gpu_is_not_enough_to_shard(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (check,) = checks("tiny", only=["fsdp-resume"])
    assert attempt(check, torch.device("cuda")).reason == "sharding needs two GPUs of one machine"


# -- world models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["imagine", "train"])
def test_the_preset_without_published_weights_is_measured(work):
    one, two = (rows.measure(Row("tiny", work, batch, "float32"), "tiny", CPU) for batch in (1, 2))
    assert two["work"].value == pytest.approx(2 * one["work"].value)
    assert two["speed"].value == pytest.approx(2 * 4 / two["time"].value)  # two rows, four frames a chunk
    assert two["utilisation"].value == pytest.approx(
        two["work"].value / two["time"].value / two["anchor"].value, rel=1e-6
    )
    assert two["speed"].n == two["time"].n == 3
    assert two["time"].lo <= two["time"].value <= two["time"].hi
    assert two["parameters"].value > 1000


@pytest.mark.parametrize("work", ["imagine", "train lora", "train full"])
def test_wan_geometries_are_measured_with_random_weights(work):
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    row = Row("Wan2.1-T2V-1.3B", work, 2, "float32")
    found = rows.measure(row, "tiny", CPU)
    assert found["speed"].value == pytest.approx(2 * 8 / found["time"].value)
    assert found["work"].value > 0
    adapter = rows.wan_config(row, "tiny").dynamics.adapter
    assert adapter == {"imagine": "lora", "train lora": "lora", "train full": "full"}[work]


def test_the_full_size_is_that_of_the_preset():
    config = rows.video_config(Row("gpu", "imagine", 1))
    assert (config.codec.image_size, config.dynamics.width, config.dynamics.depth) == (128, 768, 16)


def test_the_work_of_a_step_is_that_of_its_forward_and_backward_pass():
    """A layer of known size in the place of the loss: a product forward and two backward, for each of four rows."""
    model = rows.make_model(Row("tiny", "imagine", 2), "tiny", CPU)
    layer, x = torch.nn.Linear(3, 2), torch.randn(5, 3, requires_grad=True)
    gflop, own = rows._work_of_a_step(model, lambda: layer(x).sum(), 4)
    assert gflop == pytest.approx(4 * 3 * (2 * 5 * 3 * 2) / 1e9)
    assert [str(kernel) for kernel in own] == ["product 5x3 by 3x2"]


def test_every_optimiser_step_is_timed_and_no_other():
    weight, ticks = torch.nn.Parameter(torch.zeros(1)), iter(range(10))
    optimizer = torch.optim.SGD([weight], 0.1)
    with rows.step_ends(CPU, lambda: next(ticks)) as ends:
        optimizer.step()
        optimizer.step()
    optimizer.step()
    assert ends == [0, 1]


def test_the_anchor_is_the_fastest_call_of_each_kernel():
    ticks = iter(range(0, 1000))
    (found,) = rows.anchor_rates([kernels.square(4)], torch.float32, CPU, clock=lambda: next(ticks))
    assert found == ("product 4x4 by 4x4", pytest.approx(2 * 4**3 / 1e9))


# -- learning --------------------------------------------------------------------------------------------------------


def test_an_iteration_of_grpo_is_measured_with_its_update(monkeypatch):
    steps = []
    iterate = learning.iterate

    def counted(learner, method, k):
        with rows.step_ends(CPU) as ends:
            found = iterate(learner, method, k)
        steps.append(len(ends))
        return found

    monkeypatch.setattr(learning, "iterate", counted)
    found = learning.measure_grpo("tiny", CPU)
    assert len(steps) == 3
    assert min(steps) > 0  # decisions of an untrained policy have no advantage, and are learned from all the same
    assert found["iteration"].n == 2
    assert found["imagining"].value < found["iteration"].value


def test_updates_of_another_kind_must_log_the_same(monkeypatch):
    made = learning.updates_of

    def other(agent, kind):
        update = made(agent, "eager")
        return update if kind == "eager" else lambda batch, generator: {k: 2 * v for k, v in update(batch, generator=generator).items()}  # fmt: skip

    monkeypatch.setattr(learning, "check_updates", lambda *_: None)
    monkeypatch.setattr(learning, "updates_of", lambda agent, kind: made(agent, "eager"))
    found = learning.measure_updates("compiled", "tiny", CPU)
    assert found["largest difference"].value == 0
    assert found["compiled updates"].n == found["eager updates"].n > 10
    monkeypatch.setattr(learning, "updates_of", other)
    with pytest.raises(Exception, match="compiled updates differ from eager ones by 1 "):
        learning.measure_updates("compiled", "tiny", CPU)


# -- outcomes --------------------------------------------------------------------------------------------------------


def fails(device):
    raise ValueError("first line\nsecond line")


def skips(device):
    raise SkippedError("no card")


def full(device):
    raise torch.OutOfMemoryError("no more")


def sleeps(device):
    time.sleep(600)
    return TWO


def dies(device):
    os.kill(os.getpid(), signal.SIGKILL)
    return TWO


def passes(device):
    return TWO


def test_what_a_check_raises_is_its_outcome():
    found = [attempt(Check("a", 5, call), CPU) for call in (passes, skips, fails, full)]
    assert [one.status for one in found] == [MEASURED, SKIPPED, FAILED, FAILED]
    assert [one.reason for one in found] == ["", "no card", "ValueError: first line", "out of memory"]


@pytest.mark.parametrize(
    ("call", "limit_s", "told"),
    [(passes, 100, ""), (sleeps, 0.05, "ran past its limit of 0 s"), (dies, 100, "died with exit code -9")],
)
def test_a_process_ends_its_check_alone(call, limit_s, told):
    found = run_apart(Check("a", 5, call), CPU, limit_s)
    assert (found.status, found.numbers) == ((FAILED, {}) if told else (MEASURED, TWO))
    assert told in found.reason


@pytest.mark.parametrize(
    "given",
    [("measured", {}, ""), ("measured", TWO, "why"), ("failed", TWO, "why"), ("skipped", {}, ""), ("ok", TWO, "")],
)
def test_an_outcome_that_is_none_is_refused(given):
    status, numbers, reason = given
    with pytest.raises(ArtefactError, match="check a: status"):
        Outcome("a", status, 1.0, 5.0, numbers, reason)


def test_repetitions_become_a_median_with_its_interval():
    found = median([1.0, 2.0, 9.0], "s")
    assert (found.value, found.n, found.lo, found.hi) == (2, 3, 1, 9)
    assert median([3.0], "s") == Number(3.0, "s", None, None, 1)
    assert rate(8, [2.0, 4.0, 1.0], "frames/s").value == 4


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def three(monkeypatch):
    """Three checks in the place of all."""
    made = [Check("a", 5, passes), Check("b", 5, fails), Check("c", 5, skips)]
    monkeypatch.setattr(gpu_check, "checks", lambda *_: made)
    return made


def here(check, device, limit_s, ran):
    ran.append(check.name)
    return attempt(check, device)


def test_a_failure_stops_nothing_and_a_rerun_takes_what_has_no_numbers(tmp_path, three):
    ran, settings = [], GpuCheckSettings(run_dir=str(tmp_path / "run"), device="cpu", size="tiny")
    gpu_check.main(settings, partial(here, ran=ran))
    assert ran == ["a", "b", "c"]
    found = read_gpu_check(tmp_path / "run" / "gpu_check.json")
    assert line(found.checks[0]) == "measured a (0 s): a number 2\u00a0s"
    assert line(found.checks[1]) == "failed   b (0 s): ValueError: first line"
    assert [check.status for check in found.checks] == [MEASURED, FAILED, SKIPPED]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "ValueError: first line" in page
    gpu_check.main(settings, partial(here, ran=ran))
    assert ran == ["a", "b", "c", "b", "c"]
    assert read_gpu_check(tmp_path / "run" / "gpu_check.json").checks[0] == found.checks[0]


def test_an_interruption_loses_only_the_check_in_flight(tmp_path, three):
    settings, ran = GpuCheckSettings(run_dir=str(tmp_path / "run"), device="cpu", size="tiny"), []

    def stopped(check, device, limit_s):
        if check.name == "b":
            raise KeyboardInterrupt
        return attempt(check, device)

    with pytest.raises(KeyboardInterrupt):
        gpu_check.main(settings, stopped)
    gpu_check.main(settings, partial(here, ran=ran))
    assert ran == ["b", "c"]


def test_after_the_last_minute_nothing_starts(tmp_path, three):
    ran, settings = [], GpuCheckSettings(run_dir=str(tmp_path / "run"), device="cpu", size="tiny", minutes=1e-9)
    found = gpu_check.main(settings, partial(here, ran=ran))
    assert ran == []
    assert all("minutes of this session were over" in check["reason"] for check in found["checks"])


def test_the_file_is_refused_where_it_is_not_of_its_schema(tmp_path, three):
    gpu_check.main(GpuCheckSettings(run_dir=str(tmp_path / "run"), device="cpu", size="tiny"), partial(here, ran=[]))
    path = tmp_path / "run" / "gpu_check.json"
    whole = json.loads(path.read_text())
    for change in ({"schema": 2}, {"checks": whole["checks"][:1] * 2}, {"card": None}, {"more": 1}):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(ArtefactError, match=r"gpu_check\.json"):
            read_gpu_check(path)


def test_full_sizes_on_a_cpu_are_refused_in_one_line(tmp_path, capsys):
    assert main(["gpu-check", "device=cpu", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "give preset=tiny to try the code, or device=cuda" in capsys.readouterr().err
