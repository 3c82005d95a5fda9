"""FSDP2 (``torch.distributed.fsdp.fully_shard``) while a training runs: every process holds a part of each parameter.

Afterwards the modules are as before, with whole parameters in every process.
"""

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from worldrl.core.storage.checkpoint import checkpoint_state, write_checkpoint
from worldrl.core.storage.shards import Piece, write_shard
from worldrl.core.training.blocks import blocks
from worldrl.core.training.ema import Ema
from worldrl.core.training.processes import wait
from worldrl.core.training.ranks import world_size


@contextmanager
def sharded(module: nn.Module, optimizer: Optimizer, ema: Ema | None) -> Generator[None]:
    """Shard the parameters of ``module``, which the optimizer and the average then follow."""
    undo = [_Unsharded(module)] + ([] if ema is None else [_Unsharded(ema.module)])
    before = dict(module.named_parameters())
    for one in undo:
        _shard(one.module)
    after = dict(module.named_parameters())
    moved = {id(old): after[name] for name, old in before.items()}
    for group in optimizer.param_groups:
        group["params"] = [moved[id(parameter)] for parameter in group["params"]]
    hook = optimizer.register_load_state_dict_pre_hook(_placed_moments)
    hooks = [cast("Any", one.module).register_load_state_dict_pre_hook(_place) for one in undo]
    try:
        yield
    finally:
        for handle in (hook, *hooks):
            handle.remove()
        for one in undo:
            one.restore()


def save_sharded(
    folder: Path, step: int, modules: Mapping[str, Any], optimizers: Mapping[str, Optimizer], number: int
) -> None:
    """Write this process's pieces, then, in the first process, the checkpoint that names them all."""
    state, tensors = checkpoint_state(modules, optimizers)
    parted = {name: value for name, value in tensors.items() if isinstance(value, DTensor)}
    count = world_size()
    write_shard(folder / f"step-{step:08d}", number, count, {name: _piece(value) for name, value in parted.items()})
    wait()
    if number == 0:
        whole = {name: value for name, value in tensors.items() if name not in parted}
        write_checkpoint(folder, step, state, whole, shards=count)


class _Unsharded:
    """A module as it was before it was sharded: classes, hooks and parameters, whose storage is given back at the end."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before = [(part, part.__class__, _copied(part)) for part in module.modules()]
        self.parameters = dict(module.named_parameters())

    def restore(self) -> None:
        """Put everything back, with the trained numbers in the parameters."""
        trained = {name: _whole(value) for name, value in self.module.named_parameters()}
        for part, kind, attributes in self.before:
            part.__class__ = kind
            for name in set(part.__dict__) - set(attributes):
                del part.__dict__[name]
            part.__dict__.update(attributes)
        for name, parameter in self.parameters.items():
            parameter.data, parameter.grad = trained[name], None


def _copied(part: nn.Module) -> dict[str, Any]:
    return {name: copy.copy(value) if isinstance(value, dict) else value for name, value in part.__dict__.items()}


def _shard(module: nn.Module) -> None:
    old = list(module.parameters())
    for block in blocks(module):
        fully_shard(block)
    fully_shard(module)
    for parameter in old:
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)  # the shards hold the numbers


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor().detach() if isinstance(value, DTensor) else value.detach()


def _piece(value: DTensor) -> Piece:
    rows = value.to_local().detach()
    per = -(-value.shape[0] // world_size())  # rows of each process but the last ones, as torch cuts them
    return Piece(rows, min(value.device_mesh.get_local_rank() * per, value.shape[0]), tuple(value.shape))


def _as(value: Tensor, own: Any) -> Tensor:
    if not isinstance(own, DTensor) or isinstance(value, DTensor):
        return value
    whole = value.to(device=own.device, dtype=value.dtype)
    return distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=None)


def _place(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Cut whole tensors of a checkpoint into this process's parts."""
    for name, own in module.named_parameters():
        if prefix + name in state:
            state[prefix + name] = _as(state[prefix + name], own)


def _placed_moments(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Cut an optimizer's moments as its parameters are."""
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    order = [index for group in state["param_groups"] for index in group["params"]]
    by_index = dict(zip(order, own, strict=True))
    moments = {
        index: {
            name: _as(value, by_index[index]) if isinstance(value, Tensor) and value.ndim else value
            for name, value in parts.items()
        }
        for index, parts in state["state"].items()
    }
    return {**state, "state": moments}
