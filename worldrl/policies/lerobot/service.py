"""Server of one lerobot policy over the messages of ``worldrl.workers``; runs in lerobot's Python environment.

Requests (core → worker) carry the observation's features as arrays, images uint8 ``[B, Y, X, 3]``. For a policy with
several observations their axis follows the rows'::

    act        instruction, temperature; start and fresh [B, H, D], own [B]      → action, trace, logp
    log_prob   instruction, temperature, keep; trace                             → logp
    loss       instruction, seed, keep; action [B, H, A], normalised here        → loss
    backward   gradient of the last kept value                                   → norm of all gradients so far
    zero       clear the gradients
    step       lr, weight_decay, betas, eps, scale of the gradients              one AdamW step
    read       what: weights or optimizer                                        → tensors by name
    write      what; tensors by name
    save       folder

Weights, gradients and the optimiser's moments stay here. Training sends a batch, its log-probabilities and their
gradient through the pipe.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from worldrl.core.rng import lent_to_torch
from worldrl.policies.lerobot.folder import ACTION
from worldrl.policies.lerobot.network import LerobotNetwork, import_lerobot, installed
from worldrl.policies.lerobot.one_step import draw_chunk, trace_log_prob
from worldrl.workers.link.wire import PROTOCOL

Arrays = dict[str, NDArray[Any]]
Pulse = Callable[[str, int], None]
OPTIMIZER, WEIGHTS = "optimizer", "weights"


class Lerobot:
    """Target of a worker: one policy ``folder`` as published, on ``device``, with ``threads`` of torch on the CPU."""

    def __init__(self, *, folder: str, device: str = "cpu", threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self.network: Any = LerobotNetwork(Path(folder), device)

    def describe(self) -> dict[str, Any]:
        """Sizes and versions."""
        network = self.network
        count = sum(p.numel() for module in network.modules.values() for p in module.parameters() if p.requires_grad)
        return {
            "suite": network.folder.kind,
            "shape": list(network.sampler.shape),
            "noisy": list(network.sampler.noisy),
            "trainable": count,
            "packages": installed(),
        }

    def serve(self, pulse: Pulse) -> "Service":
        """Return the object that answers requests."""
        return Service(self.network, pulse)


class Installation:
    """Target of ``worldrl setup lerobot``: imports lerobot's policies to test the environment."""

    def describe(self) -> dict[str, Any]:
        """Versions."""
        import_lerobot()
        return {"suite": "lerobot", "packages": installed()}

    def close(self) -> None:
        """Nothing to release."""


class Service:
    """Answers requests about one :class:`~worldrl.policies.lerobot.network.LerobotNetwork`; ``pulse`` precedes each."""

    def __init__(self, network: Any, pulse: Pulse) -> None:
        self._network, self._pulse = network, pulse
        self._kept: Tensor | None = None
        self._parameters = {
            f"{part}/{name}": parameter
            for part, module in network.modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self._optimizer = torch.optim.AdamW(list(self._parameters.values()))

    def answer(self, header: Mapping[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """Serve one request."""
        self._pulse(str(header["kind"]), -1)
        handlers: dict[str, Callable[[Mapping[str, Any], Arrays], Arrays]] = {
            "act": self._act,
            "log_prob": self._log_prob,
            "loss": self._loss,
            "backward": self._backward,
            "zero": self._zero,
            "step": self._step,
            "read": self._read,
            "write": self._write,
            "save": self._save,
        }
        if header["kind"] not in handlers:
            raise ValueError(f"unknown request {header['kind']!r}")
        return {"kind": "rows", "protocol": PROTOCOL}, handlers[header["kind"]](header, arrays)

    def close(self) -> None:
        """Nothing to release but memory."""

    # --- acting ----------------------------------------------------------------------------------------------------

    def _act(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        network, size = self._network, self._network.folder.action_size
        with torch.inference_mode():
            seen = network.sampler.encode(self._batch(header, arrays))
            start, fresh, own = (self._tensor(arrays[name]) for name in ("start", "fresh", "own"))
            chunk, trace, logp = draw_chunk(network.sampler, seen, start, fresh, own, float(header["temperature"]))
            action = network.actions(chunk[..., :size].float())
        return {"action": array(action), "trace": array(trace), "logp": array(logp[..., :size])}

    def _log_prob(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        network = self._network
        with torch.set_grad_enabled(bool(header["keep"])):
            seen = network.sampler.encode(self._batch(header, arrays))
            trace = self._tensor(arrays["trace"])
            logp = trace_log_prob(network.sampler, seen, trace, float(header["temperature"]))
        logp = logp[..., : network.folder.action_size]
        self._kept = logp if header["keep"] else None
        return {"logp": array(logp)}

    # --- learning --------------------------------------------------------------------------------------------------

    def _loss(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        batch = self._batch(header, arrays, action=self._tensor(arrays[ACTION]))
        batch["action_is_pad"] = torch.zeros(arrays[ACTION].shape[:2], dtype=torch.bool, device=self._network.device)
        keep = bool(header["keep"])
        for module in self._network.modules.values():
            module.train()  # also where the loss is only measured: ACT's has a term of its training mode
        with torch.set_grad_enabled(keep), lent_to_torch(int(header["seed"]), "loss"):
            loss = self._network.loss(batch)
        for module in self._network.modules.values():
            module.eval()
        self._kept = loss if keep else None
        return {"loss": array(loss)}

    def _backward(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        if self._kept is None:
            raise ValueError("backward: nothing was kept; ask for log_prob or loss with keep first")
        self._kept.backward(self._tensor(arrays["gradient"]).to(self._kept).reshape(self._kept.shape))
        self._kept = None
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        return {"norm": array(nn.utils.get_total_norm(gradients))}

    def _zero(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        self._optimizer.zero_grad(set_to_none=True)  # the kept value stays: losses are computed before this
        return {}

    def _step(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(float(header["scale"]))
        for group in self._optimizer.param_groups:
            group |= {name: header[name] for name in ("lr", "weight_decay", "eps")}
            group["betas"] = tuple(header["betas"])
        self._optimizer.step()
        return {}

    # --- state -----------------------------------------------------------------------------------------------------

    def _read(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        return {name: array(tensor) for name, tensor in self._state(header["what"]).items()}

    def _write(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        if header["what"] == OPTIMIZER:
            self._optimizer.state.clear()
            for name, parameter in self._parameters.items():
                own = {key.rpartition("/")[2]: key for key in arrays if key.rpartition("/")[0] == name}
                moments = {short: torch.from_numpy(arrays[key]) for short, key in own.items()}
                if moments:
                    self._optimizer.state[parameter] = {
                        key: value if key == "step" else value.to(parameter) for key, value in moments.items()
                    }
            return {}
        with torch.no_grad():
            for name, tensor in self._state(WEIGHTS).items():
                tensor.copy_(self._tensor(arrays[name]))
        return {}

    def _state(self, what: str) -> dict[str, Tensor]:
        """Weights that are trained and buffers that may move, or the optimiser's moments, by name."""
        if what == OPTIMIZER:
            return {
                f"{name}/{key}": value
                for name, parameter in self._parameters.items()
                for key, value in self._optimizer.state.get(parameter, {}).items()
            }
        buffers = {
            f"{part}/{name}": buffer
            for part, module in self._network.modules.items()
            for name, buffer in module.named_buffers()
            if buffer.is_floating_point() or name.endswith("num_batches_tracked")
        }
        return {**self._parameters, **buffers}

    def _save(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        self._network.save(Path(header["folder"]))
        return {}

    # --- arrays ----------------------------------------------------------------------------------------------------

    def _tensor(self, value: NDArray[Any]) -> Tensor:
        return torch.from_numpy(value).to(self._network.device)

    def _batch(self, header: Mapping[str, Any], arrays: Arrays, action: Tensor | None = None) -> Any:
        features = {
            name: channels_first(torch.from_numpy(arrays[name]))
            if feature.kind == "VISUAL"
            else torch.from_numpy(arrays[name])
            for name, feature in self._network.folder.inputs.items()
        }
        return self._network.batch(features, header["instruction"], action)


def channels_first(image: Tensor) -> Tensor:
    """Uint8 ``[B, ..., Y, X, 3]`` to float ``[B, ..., 3, Y, X]`` in [0, 1], the layout of lerobot's processors."""
    return image.movedim(-1, -3).float().contiguous() / 255


def array(tensor: Tensor) -> NDArray[Any]:
    """A tensor as numpy array; bfloat16, which numpy lacks, becomes float32."""
    tensor = tensor.detach().cpu()
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
