import logging
import math

import pytest
import torch
from torch import nn

from worldrl.core.errors import ArtefactError
from worldrl.core.rng import stream
from worldrl.core.storage.checkpoint import load_checkpoint, save_checkpoint

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.95), amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "groups": lambda p: torch.optim.Adam([{"params": p[:1], "lr": 0.5}, {"params": p[1:], "weight_decay": 0.1}]),
}


def make_module() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    generator = stream(0, "module")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def advance(module: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        module(torch.randn(8, 3, generator=stream(0, "batch", step))).square().mean().backward()
        optimizer.step()


def flat(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    state = optimizer.state_dict()["state"]
    inner = [value for entry in state.values() for value in entry.values() if isinstance(value, torch.Tensor)]
    return [*module.state_dict().values(), *inner]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_resume_is_bit_equal_to_continuing(tmp_path, make):
    module = make_module()
    optimizer = make(list(module.parameters()))
    advance(module, optimizer, range(5))
    save_checkpoint(tmp_path, 5, modules={"m": module}, optimizers={"o": optimizer})
    advance(module, optimizer, range(5, 10))
    again = make_module()
    other = make(list(again.parameters()))
    found = load_checkpoint(tmp_path, modules={"m": again}, optimizers={"o": other})
    assert found is not None
    assert found.step == 5
    assert other.param_groups[0].keys() == optimizer.param_groups[0].keys()
    assert isinstance(other.param_groups[0].get("betas", ()), tuple)
    advance(again, other, range(5, 10))
    for mine, theirs in zip(flat(module, optimizer), flat(again, other), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def test_extra_round_trips_exactly_with_types(tmp_path):
    extra = {
        "best": 0.1 + 0.2,
        "tiny": 5e-324,
        "infinite": math.inf,
        "pair": (1, 2.0),
        "by_index": {0: "a", (1, 2): None},
        "flags": [True, False],
        "text": "ü\n$",
        "$tag": {"$tensor": "not one"},
        "table": torch.arange(3),
    }
    save_checkpoint(tmp_path, 1, modules={}, optimizers={}, extra=extra)
    found = load_checkpoint(tmp_path, modules={}, optimizers={})
    assert found is not None
    table = found.extra.pop("table")
    assert torch.equal(table, extra.pop("table"))
    assert repr(found.extra) == repr(extra)


def test_extra_that_cannot_be_stored_is_named(tmp_path):
    with pytest.raises(ArtefactError, match="state/extra/a/0: set cannot be stored"):
        save_checkpoint(tmp_path, 1, modules={}, optimizers={}, extra={"a": [{1}]})
    assert list(tmp_path.iterdir()) == []


def save(folder, step):
    module = nn.Linear(2, 2)
    nn.init.constant_(module.weight, step)
    save_checkpoint(folder, step, modules={"m": module}, optimizers={})


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_the_newest_two_are_kept(tmp_path):
    for step in (5, 10, 20, 100_000_000):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-00000020", "step-100000000"]
    module = nn.Linear(2, 2)
    found = load_checkpoint(tmp_path, modules={"m": module}, optimizers={})
    assert found is not None
    assert found.step == 100_000_000
    assert module.weight[0, 0].item() == 100_000_000


def test_a_damaged_newest_is_skipped_reported_and_replaced_in_time(tmp_path, caplog):
    for step in (10, 20):
        save(tmp_path, step)
    with (tmp_path / "step-00000020" / "model.safetensors").open("r+b") as file:
        file.truncate(50)
    module = nn.Linear(2, 2)
    with caplog.at_level(logging.WARNING):
        found = load_checkpoint(tmp_path, modules={"m": module}, optimizers={})
    assert found is not None
    assert found.step == 10
    assert module.weight[0, 0].item() == 10
    assert len(found.skipped) == 1
    assert "step-00000020" in found.skipped[0]
    assert "cut short" in caplog.text
    save(tmp_path, 15)  # training continues from 10: what lies after 15 is of no use
    assert names(tmp_path) == ["step-00000010", "step-00000015"]


def test_only_damaged_checkpoints_do_not_start_afresh_in_silence(tmp_path):
    save(tmp_path, 10)
    (tmp_path / "step-00000010" / "manifest.json").unlink()
    with pytest.raises(ArtefactError, match="no checkpoint can be read; delete the folder to start again"):
        load_checkpoint(tmp_path, modules={"m": nn.Linear(2, 2)}, optimizers={})


def test_nothing_there_is_none(tmp_path):
    assert load_checkpoint(tmp_path / "none", modules={}, optimizers={}) is None
    assert load_checkpoint(tmp_path, modules={}, optimizers={}) is None


def test_leftovers_of_a_dead_save_are_removed(tmp_path):
    save(tmp_path, 10)
    (tmp_path / f"step-00000020.tmp-{'a' * 32}").mkdir()
    load_checkpoint(tmp_path, modules={"m": nn.Linear(2, 2)}, optimizers={})
    assert names(tmp_path) == ["step-00000010"]


@pytest.mark.parametrize(
    ("modules", "make", "message"),
    [
        ({"m": nn.Linear(3, 2)}, OPTIMIZERS["sgd"], r"weight is torch.float32 \[2, 2\] in the checkpoint"),
        ({"m": nn.Linear(2, 2, bias=False)}, OPTIMIZERS["sgd"], "bias is only in the checkpoint"),
        ({"m": nn.Linear(2, 2).double()}, OPTIMIZERS["sgd"], "torch.float32"),
        ({"other": nn.Linear(2, 2)}, OPTIMIZERS["sgd"], r"holds modules \['m'\], got \['other'\]"),
        ({"m": nn.Linear(2, 2)}, OPTIMIZERS["adamw"], "optimizer 'o' is SGD, got AdamW"),
        ({"m": nn.Linear(2, 2)}, lambda p: torch.optim.SGD(p[:1], momentum=0.9), r"groups of \[2\] parameters"),
    ],
)
def test_another_model_is_refused_and_left_untouched(tmp_path, modules, make, message):
    module = nn.Linear(2, 2)
    optimizer = OPTIMIZERS["sgd"](list(module.parameters()))
    save_checkpoint(tmp_path, 1, modules={"m": module}, optimizers={"o": optimizer})
    (given,) = modules.values()
    before = [p.clone() for p in given.parameters()]
    with pytest.raises(ArtefactError, match=message):
        load_checkpoint(tmp_path, modules=modules, optimizers={"o": make(list(given.parameters()))})
    assert all(torch.equal(a, b) for a, b in zip(before, given.parameters(), strict=True))


@pytest.mark.gpu
def test_a_checkpoint_moves_between_devices(tmp_path):
    module = make_module().cuda()
    optimizer = OPTIMIZERS["adamw"](list(module.parameters()))
    module(torch.randn(8, 3, device="cuda")).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path, 1, modules={"m": module}, optimizers={"o": optimizer})
    again = make_module()
    load_checkpoint(tmp_path, modules={"m": again}, optimizers={"o": OPTIMIZERS["adamw"](list(again.parameters()))})
    assert all(torch.equal(a.cpu(), b) for a, b in zip(module.parameters(), again.parameters(), strict=True))
