"""Weights, gradients and the optimizer's state divided over the processes (FSDP2), and made whole again.

Torch's ``fully_shard`` changes modules in place: each weight becomes a DTensor of which this process holds one part. Here
that lasts as long as a training. Afterwards modules and optimizer are as before, with the trained values.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from worldrl.core.errors import NonFiniteError
from worldrl.core.interfaces import Stateful
from worldrl.core.training.blocks import blocks

Pairs = list[tuple[nn.Parameter, nn.Parameter]]  # each weight, whole and divided
Remembered = list[tuple[nn.Module, type[nn.Module], dict[str, Any]]]


@contextmanager
def sharded(roots: Sequence[nn.Module], optimizer: Optimizer, device: str) -> Generator[None]:
    """Divide each root, block by block, and the optimizer's state over all processes on this kind of ``device``.

    The first root's forward is the whole loss. All processes hold equal values, and must enter and leave together. After
    an error that other processes need not have, the weights stay lost: gathering them would wait for those processes.
    """
    whole = _parameters(roots)
    remembered = [entry for root in roots for entry in _remember(root)]
    _divide(roots, device)
    pairs = list(zip(whole, _parameters(roots), strict=True))
    _exchange(optimizer, dict(pairs), _like)
    for weight, _ in pairs:
        weight.data = weight.data.new_empty(0)  # only the parts take memory now
    try:
        yield
    except (NonFiniteError, KeyboardInterrupt):  # every process has these
        _join(pairs, optimizer, remembered)
        raise
    _join(pairs, optimizer, remembered)


def whole_tensor(value: Any) -> Any:
    """Gather a divided tensor from all processes, which must ask together; return anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


class WholeModule:
    """The whole state of a divided module; all processes must ask for it together."""

    def __init__(self, module: Stateful) -> None:
        self._state = {name: whole_tensor(value) for name, value in module.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Tensors by name, and numbers."""
        return self._state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse: a module is loaded before it is divided."""
        raise TypeError("a gathered state is written, never loaded")


def whole_optimizer(optimizer: Optimizer) -> Optimizer:
    """Copy an optimizer with its whole state; all processes must ask for it together."""
    found = copy.copy(optimizer)
    found.state = defaultdict(
        dict, {key: {n: whole_tensor(v) for n, v in s.items()} for key, s in optimizer.state.items()}
    )
    return found


def clip_parts(parameters: Sequence[Tensor], limit: float, norm: Tensor) -> None:
    """Scale the gradients' parts so that ``norm``, which is of all processes, becomes ``limit`` at most."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            cast("DTensor", parameter.grad).to_local().mul_(factor)


def _divide(roots: Sequence[nn.Module], device: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    for root in roots:
        for module in (*blocks(root), root):
            fully_shard(module, mesh=mesh)


def _join(pairs: Pairs, optimizer: Optimizer, remembered: Remembered) -> None:
    """Gather weights and state from all processes, and undo what ``fully_shard`` changed."""
    _exchange(optimizer, {part: weight for weight, part in pairs}, lambda value, _: whole_tensor(value))
    for weight, part in pairs:
        weight.data, weight.grad = whole_tensor(part.detach()), None
    _restore(remembered)


def _parameters(roots: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [parameter for root in roots for parameter in root.parameters()]


def _like(value: Any, part: Tensor) -> Any:
    """Divide what has a weight's shape as the weight is divided."""
    if not isinstance(part, DTensor) or not isinstance(value, Tensor) or value.shape != part.shape:
        return value
    return distribute_tensor(value, part.device_mesh, part.placements, src_data_rank=None)


def _exchange(optimizer: Optimizer, others: Mapping[Any, Tensor], change: Callable[[Any, Tensor], Any]) -> None:
    """Give the optimizer other parameters in place of its own, with their changed state."""
    for group in optimizer.param_groups:
        group["params"] = [others.get(parameter, parameter) for parameter in group["params"]]
    for old in [key for key in optimizer.state if key in others]:
        new, state = others[old], optimizer.state.pop(old)
        optimizer.state[new] = {name: change(value, new) for name, value in state.items()}


def _remember(root: nn.Module) -> Remembered:
    """Keep what ``fully_shard`` changes of each module: class, weights and hooks."""
    return [
        (module, type(module), {n: copy.copy(v) if _is_changed(n) else None for n, v in vars(module).items()})
        for module in root.modules()
    ]


def _is_changed(name: str) -> bool:
    return name == "_parameters" or "hook" in name


def _restore(remembered: Remembered) -> None:
    for module, kind, attributes in remembered:
        module.__class__ = kind
        for name in [name for name in vars(module) if "composable" in name and name not in attributes]:
            del module.__dict__[name]
        module.__dict__.update({name: value for name, value in attributes.items() if _is_changed(name)})
        if kind.__setattr__ is not nn.Module.__setattr__:  # recurrent cells keep further references to their weights
            for name, weight in attributes["_parameters"].items():
                setattr(module, name, weight)
