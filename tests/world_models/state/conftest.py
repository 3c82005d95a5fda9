"""A stand-in for a GPU's tensors, where there is none."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor


class Elsewhere(Tensor):
    """A tensor that says it is not on the CPU and, like a GPU's, refuses to meet one that is."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:  # made anew at each look
            return torch.device("meta")
        if func is Tensor.numpy:
            raise TypeError("can't convert a device's tensor to numpy; use Tensor.cpu() first")
        if func is Tensor.cpu or (func is Tensor.to and torch.device(args[1]).type == "cpu"):
            return args[0].as_subclass(Tensor)
        if func is Tensor.to:
            return args[0]
        if any(type(value) is Tensor and value.ndim for value in _flat((args, kwargs))):
            raise RuntimeError(f"{func.__name__}: expected all tensors to be on the same device")
        return super().__torch_function__(func, types, args, kwargs)


def _flat(values: Any) -> Iterable[Any]:
    if isinstance(values, dict):
        values = values.values()
    if isinstance(values, Tensor) or not isinstance(values, Iterable) or isinstance(values, str):
        yield values
        return
    for value in values:
        yield from _flat(value)


@pytest.fixture
def elsewhere() -> Callable[[Tensor], Tensor]:
    """Move a tensor to where CPU tensors are refused."""
    return lambda tensor: tensor.as_subclass(Elsewhere)
