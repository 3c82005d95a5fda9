"""``RemoteWorld``: rollouts in the world model of another process, with a vector environment's ``reset`` and ``step``.

::

    with RemoteWorld("ws://127.0.0.1:18090", num_envs=4, horizon=60) as world:
        obs, info = world.reset(seed=0, options={"index": [0, 1, 2, 3]})
        obs, reward, terminated, truncated, info = world.step(chunk)

Shapes legend: as of ``rollout.serving.world_model``; ``B`` is ``num_envs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import RemoteError, SettingError
from worldrl.core.observation import COMMAND, STATE
from worldrl.policies.remote.address import Address
from worldrl.policies.remote.link import Link
from worldrl.policies.remote.packing import shown
from worldrl.policies.remote.policy import said_by
from worldrl.rewards.success import SuccessRule, first_success
from worldrl.rollout.serving.world_model import KIND, ServedWorld
from worldrl.rollout.spaces import check_action, whole

Step = tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class RemoteWorld:
    """Imagined rollouts of a server; a step takes a whole chunk, and rows that are over wait for ``reset``.

    Observations are the newest ones: ``image`` and the other cameras uint8 ``[B, Y, X, 3]``, ``command`` ``[B, A]``,
    ``state`` ``[B, S]`` of a model that predicts it. Reward is 1 on the chunk of the first imagined success;
    ``terminated`` there, ``truncated`` after ``horizon`` control steps. ``info`` holds the chunk's ``frames``
    (by camera, uint8 ``[B, F, Y, X, 3]``), ``success_prob`` and ``uncertainty`` ``[B, F]`` (None without an ensemble).
    ``address`` as of a remote policy, with ``timeout_s`` and ``token_file`` only.
    """

    def __init__(self, address: str, *, num_envs: int, horizon: int) -> None:
        parsed = Address.parse(address)
        if parsed.keys or parsed.named or parsed.chunk or parsed.size:
            raise SettingError(
                f"{parsed.url}: keys, chunk and size are of policies; give timeout_s and token_file only"
            )
        self._link = Link(parsed)
        self._link.open()
        said = said_by(self._link, ServedWorld, KIND)
        if said is None:
            raise RemoteError(f"{parsed.url}: serves no world model of worldrl")
        self.served, self.actions = said, said.actions
        self.num_envs, self.horizon = whole("num_envs", num_envs, 1), whole("horizon", horizon, 1)
        self._rule = SuccessRule.of(said)
        self._obs: dict[str, Any] | None = None

    def reset(
        self, *, seed: int = 0, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin all rows; ``seed`` is the root of all draws.

        ``options`` hold ``index``, numbers of the server's recorded starts (without options the first ones), or a start
        of each row: the cameras' images, ``command``, ``state``, ``instruction`` and ``task``. Raises RemoteError (the
        server refuses them, or does not answer).
        """
        answer = self._link.ask({"reset": dict(options or {"index": list(range(self.num_envs))}), "seed": seed})
        self._require(answer, frames=None)
        self._elapsed, self._over = 0, np.zeros(self.num_envs, bool)
        self._streak = torch.zeros(self.num_envs, dtype=torch.int64)
        self._obs = {name: answer[name] for name in self._names}
        return self._obs, {name: answer.get(name) for name in ("instruction", "task")}

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Imagine one chunk float32 ``[B, L, A]``; ActionError for another one, RemoteError as of :meth:`reset`."""
        if self._obs is None:
            raise gymnasium.error.ResetNeeded("call reset() before stepping the remote world")
        length, stride = self.served.chunk_length, self.served.frame_stride
        actions = check_action(actions, (self.num_envs, length), self.actions)
        answer = self._link.ask({"step": actions})
        self._require(answer, frames=length // stride)
        hit, self._streak = first_success(torch.tensor(answer["success_prob"]), self._rule, self._streak)
        self._elapsed += length
        terminated = (hit.numpy() >= 0) & ~self._over
        truncated = ~terminated & ~self._over & (self._elapsed >= self.horizon)
        self._over |= terminated | truncated
        self._obs = {name: answer[name][:, -1] for name in self._names}
        frames = {name: answer[name] for name in self.served.images}
        info = {"frames": frames, "success_prob": answer["success_prob"], "uncertainty": answer.get("uncertainty")}
        return self._obs, terminated.astype(np.float64), terminated, truncated, info

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self.served.images, COMMAND, *((STATE,) if self.served.state else ()))

    def _require(self, answer: Mapping[str, Any], frames: int | None) -> None:
        """RemoteError for an answer of another shape or type, or with numbers that are not finite."""
        rows, length, image = self.num_envs, self.served.chunk_length, (*self.served.image, 3)
        times = () if frames is None else (frames,)
        wanted: dict[str, tuple[int, ...]] = {name: (rows, *times, *image) for name in self.served.images}
        wanted[COMMAND] = (rows, *(() if frames is None else (length,)), self.actions.size)
        if self.served.state:
            wanted[STATE] = (rows, *times, self.served.state)
        if frames is not None:
            wanted |= {name: (rows, frames) for name in ("success_prob", "uncertainty")}
        for name, shape in wanted.items():
            value, kind = answer.get(name), "u" if name in self.served.images else "f"
            if name == "uncertainty" and value is None:
                continue
            if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind != kind:
                raise RemoteError(f"{self._link.address.url}: {name} must be {list(shape)}, it is {shown(value)}")
            if not np.isfinite(value).all():
                raise RemoteError(f"{self._link.address.url}: {name} holds numbers that are not finite")
