import math
import runpy
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from worldrl.core.errors import ArtefactError, NonFiniteError, SettingError
from worldrl.core.rng import stream
from worldrl.core.storage.checkpoint import load_checkpoint
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.core.training.ema import Ema
from worldrl.core.training.fit import fit
from worldrl.core.training.optimizer import warmup_cosine

SCRIPT = Path(__file__).with_name("fit_script.py")
train = runpy.run_path(str(SCRIPT))["train"]


class StopError(Exception):
    """Ends a training from inside its loss."""


def outcome(folder: Path) -> dict[str, bytes]:
    """Everything that must be bit-equal: weights, optimizer state, average, and logged losses."""
    last = folder / "checkpoints" / "step-00000020"
    files = {name: (last / name).read_bytes() for name in ("config.json", "model.safetensors")}
    return files | {"metrics": (folder / "metrics.jsonl").read_bytes()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    report = train(folder)
    assert (report.steps, report.resumed_from) == (20, 0)
    assert [line["step"] for line in read_metrics(folder)] == list(range(20))
    return outcome(folder)


def test_the_same_training_twice_is_bit_equal(uninterrupted, tmp_path):
    report = train(tmp_path)
    assert outcome(tmp_path) == uninterrupted
    lines = read_metrics(tmp_path)
    assert report.logs == lines[-1]["values"]
    assert len({line["values"]["loss"] for line in lines}) == 20


@pytest.mark.parametrize("step", [0, 3, 6, 11, 19])
def test_resume_after_an_exception_is_bit_equal(step, uninterrupted, tmp_path):
    def stop(at: int) -> None:
        if at == step:
            raise StopError

    with pytest.raises(StopError):
        train(tmp_path, stop)
    report = train(tmp_path)
    assert report.resumed_from == step // 6 * 6
    assert outcome(tmp_path) == uninterrupted


@pytest.mark.parametrize(
    ("what", "moment"),
    [("loss", 14), ("replace", 2), ("fsync", 13)],
    ids=["within a step", "at a rename", "while saving"],
)
def test_resume_after_kill_9_is_bit_equal(what, moment, uninterrupted, tmp_path, child):
    result = child("", tmp_path, what, moment, file=SCRIPT)
    assert result.returncode == -signal.SIGKILL, result.stderr
    report = train(tmp_path)
    assert report.resumed_from < 20
    assert outcome(tmp_path) == uninterrupted
    kept = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-00000018", "step-00000020"], "no leftovers"


def test_ctrl_c_saves_the_step_in_flight(uninterrupted, tmp_path, child):
    result = child("", tmp_path, "interrupt", 9, file=SCRIPT)
    assert "KeyboardInterrupt" in result.stderr
    assert "finishing this step and saving it" in result.stderr
    report = train(tmp_path)
    assert report.resumed_from == 10
    assert outcome(tmp_path) == uninterrupted


def test_a_damaged_newest_checkpoint_costs_steps_not_the_result(uninterrupted, tmp_path):
    train(tmp_path)
    (tmp_path / "checkpoints" / "step-00000020" / "model.safetensors").write_bytes(b"")
    report = train(tmp_path)
    assert report.resumed_from == 18
    assert len(report.skipped) == 1
    assert outcome(tmp_path) == uninterrupted


def test_a_finished_training_does_nothing_more(uninterrupted, tmp_path):
    train(tmp_path)

    def never(step: int) -> None:
        raise StopError

    report = train(tmp_path, never)
    assert (report.steps, report.resumed_from, report.logs) == (20, 20, {})
    assert outcome(tmp_path) == uninterrupted


def linear_fit(loss, **given):
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 1.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=given.pop("lr", 0.1))
    seen = []
    report = fit(
        "toy",
        modules={"net": module},
        optimizer=optimizer,
        loss=lambda step: loss(module, step),
        on_step=lambda step: seen.append((step, module.weight.item())),
        **({"steps": 4} | given),
    )
    return module, report, seen


def test_one_step_is_the_textbook_step():
    # loss = 3 w: gradient 3, clipped to norm 2, learning rate 0.1 times the schedule
    _, report, seen = linear_fit(
        lambda module, step: (3 * module.weight.sum(), {}), clip_norm=2.0, schedule=lambda step: 1 / (step + 1)
    )
    expected = [1 - 0.2, 1 - 0.2 * (1 + 1 / 2), 1 - 0.2 * (1 + 1 / 2 + 1 / 3), 1 - 0.2 * (1 + 1 / 2 + 1 / 3 + 1 / 4)]
    assert [step for step, _ in seen] == [0, 1, 2, 3]
    torch.testing.assert_close([weight for _, weight in seen], expected, rtol=0, atol=1e-6)
    assert report.logs["grad_norm"] == pytest.approx(3.0)
    assert report.logs["lr"] == pytest.approx(0.1 / 4)
    assert report.logs["loss"] == pytest.approx(3 * expected[2])


def test_it_learns_least_squares():
    def loss(module, step):
        x = torch.randn(32, 1, generator=stream(0, "x", step))
        return (module(x) - 2.5 * x).square().mean(), {}

    module, _, _ = linear_fit(loss, steps=100)
    assert module.weight.item() == pytest.approx(2.5, abs=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_loss_stops_before_the_step(bad, tmp_path):
    with pytest.raises(NonFiniteError, match=rf"toy: loss is {bad} at step 2; .*last checkpoint is intact"):
        linear_fit(
            lambda module, step: (module.weight.sum() * (bad if step == 2 else 1), {}),
            folder=tmp_path,
            every_checkpoint=1,
        )
    module = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = load_checkpoint(tmp_path, modules={"net": module}, optimizers={"optimizer": optimizer})
    assert found is not None
    assert found.step == 2
    assert module.weight.item() == pytest.approx(1 - 2 * 0.1)


def test_a_non_finite_gradient_is_named():
    def loss(module, step):
        # sqrt has value 0 and gradient infinity at 0: the loss is finite, its gradient is not
        return (module.weight - module.weight.detach()).sqrt().sum(), {}

    with pytest.raises(NonFiniteError, match=r"gradient norm is inf at step 0 \(first in net.weight\)"):
        linear_fit(loss)


def test_every_log_thins_the_lines_but_keeps_the_last(tmp_path):
    with MetricLog(tmp_path, tracker=TrackerName.none) as log:
        linear_fit(lambda module, step: (module.weight.sum(), {}), log=log, every_log=3, steps=8)
    assert [line["step"] for line in read_metrics(tmp_path)] == [2, 5, 7]


def test_the_log_is_on_the_disk_before_the_checkpoint(tmp_path):
    saved = []

    class Watched(MetricLog):
        def flush(self) -> None:
            saved.append(sorted(p.name for p in tmp_path.glob("step-*")))
            super().flush()

    with Watched(tmp_path, tracker=TrackerName.none) as log:
        linear_fit(lambda module, step: (module.weight.sum(), {}), log=log, folder=tmp_path, every_checkpoint=2)
    assert saved[:2] == [[], ["step-00000002"]]


def test_a_second_training_with_the_same_optimizer_starts_from_the_same_rate():
    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        report = fit(
            "toy",
            modules={"net": module},
            optimizer=optimizer,
            loss=lambda step: (module.weight.sum(), {}),
            steps=2,
            schedule=lambda step: 0.5,
        )
        assert report.logs["lr"] == pytest.approx(0.05)


def test_numbers_out_of_range_are_named():
    for name in ("steps", "every_checkpoint", "every_log"):
        with pytest.raises(SettingError, match=f"toy: {name} must be at least 1, got 0"):
            linear_fit(lambda module, step: (module.weight.sum(), {}), **{name: 0})


def test_another_network_is_refused(tmp_path):
    train(tmp_path)
    module = nn.Linear(2, 2)
    with pytest.raises(ArtefactError, match="holds modules"):
        fit(
            "toy",
            modules={"net": module},
            optimizer=torch.optim.AdamW(module.parameters()),
            loss=lambda step: (module.weight.sum(), {}),
            steps=30,
            folder=tmp_path / "checkpoints",
        )


def test_warmup_cosine_closed_form():
    factor = warmup_cosine(100, 10, final=0.1)
    assert [factor(0), factor(4), factor(9), factor(10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert factor(55) == pytest.approx(0.1 + 0.9 * 0.5)
    assert factor(100) == factor(1000) == pytest.approx(0.1)
    assert warmup_cosine(10, 0)(0) == 1
    with pytest.raises(SettingError, match=r"warmup: must be in \[0, steps=10\), got 10"):
        warmup_cosine(10, 10)
    with pytest.raises(SettingError, match=r"final: must be in \[0, 1\], got 2"):
        warmup_cosine(10, 1, final=2)


def test_ema_closed_form():
    source = nn.Linear(1, 1, bias=False)
    nn.init.constant_(source.weight, 0.0)
    ema = Ema(source, 0.5)
    expected = 0.0
    for update in range(1, 6):
        nn.init.constant_(source.weight, float(update))
        ema.update()
        decay = min(0.5, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * update
    assert ema.module.weight.item() == pytest.approx(expected)
    assert source.weight.item() == 5


def test_ema_copies_buffers_stays_in_eval_mode_and_has_no_gradient():
    source = nn.BatchNorm1d(2)
    ema = Ema(source, 0.9)
    source(torch.randn(4, 2, generator=stream(0, "x")))
    ema.update()
    ema.train()
    assert torch.equal(ema.module.running_mean, source.running_mean)
    assert ema.module.num_batches_tracked.item() == 1
    assert not ema.module.training
    assert source.training
    assert not any(p.requires_grad for p in ema.parameters())
    assert set(ema.state_dict()) == {*(f"module.{k}" for k in source.state_dict()), "_extra_state"}


def test_ema_refuses_a_decay_that_never_learns():
    with pytest.raises(SettingError, match=r"ema decay: must be in \[0, 1\), got 1"):
        Ema(nn.Linear(1, 1), 1.0)
