"""Copies of one scene, stepped together by MuJoCo Warp in float32: on a GPU, or slowly on warp's CPU device.

C MuJoCo (float64) and MuJoCo Warp (float32) solve the same equations, so copies of one start diverge slowly, and sooner
where contacts decide (``tests/rollout/test_warp.py`` bounds it, ``docs/guide/simulators.md`` has numbers).

Shapes legend: ``N`` copies, ``nq``, ``nv``, ``nu`` as in MuJoCo.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.extras import require

EXTRA = "warp"
_SOLVED = 1  # bit of an active contact, ``ContactType.CONSTRAINT``, which mujoco-warp 4.0 does not export
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Readings:
    """State of all copies after a control step, named as in MuJoCo; arrays float64 ``[N, ...]`` in m.

    ``qpos`` is ``[N, nq]``, ``qvel`` ``[N, nv]``, ``xquat`` (w, x, y, z), ``xmat`` and ``site_xmat`` ``[N, .., 9]``.
    ``pair`` ``[C, 2]`` holds the geoms of each contact of any copy, ``world`` ``[C]`` its copy.
    """

    qpos: Floats
    qvel: Floats
    xpos: Floats
    xquat: Floats
    xmat: Floats
    site_xpos: Floats
    site_xmat: Floats
    geom_xpos: Floats
    pair: NDArray[np.int64]
    world: NDArray[np.int64]

    def view(self, row: int, geom_id: dict[str, int]) -> Any:
        """One copy with the names of ``mujoco.MjData`` that predicates read; ``geom_id`` numbers named geoms."""
        names = ("qpos", "qvel", "xpos", "xquat", "xmat", "site_xpos", "site_xmat")
        contact = SimpleNamespace(geom=self.pair[self.world == row])

        def geom(name: str) -> Any:
            return SimpleNamespace(xpos=self.geom_xpos[row, geom_id[name]])

        return SimpleNamespace(**{name: getattr(self, name)[row] for name in names}, contact=contact, geom=geom)


class WarpPhysics:
    """``N`` copies of a ``mujoco.MjModel`` on one device, such as ``"cuda:0"``; see :class:`~.warp.WarpVecEnv`.

    Raises MissingExtraError (mujoco-warp is not installed). Raises SettingError (unknown device, or a model that MuJoCo
    Warp does not support).
    """

    def __init__(self, model: Any, *, copies: int, device: str, contacts: int, constraints: int) -> None:
        self._warp, self._mjw = require("warp", extra=EXTRA), require("mujoco_warp", extra=EXTRA)
        try:
            self.device = str(self._warp.get_device(device or None))
        except (ValueError, RuntimeError) as error:
            known = ", ".join(map(str, self._warp.get_devices()))
            raise SettingError(f"device: warp knows {known}; got {device!r} ({error})") from error
        self.copies, self._room = copies, f"contacts={contacts} and constraints={constraints} per copy"
        with self._here():
            try:
                self._model = self._mjw.put_model(model)
            except RuntimeError as error:  # also for missing features
                raise SettingError(f"MuJoCo Warp cannot simulate this task's model: {error}") from error
            self._data = self._mjw.make_data(model, nworld=copies, nconmax=contacts, njmax=constraints)
        kinds = self._mjw.OverflowType
        self._fatal = int(kinds.NEFC | kinds.NJMAX_NNZ | kinds.BROADPHASE | kinds.NARROWPHASE | kinds.CCD)

    def _here(self) -> Any:
        return self._warp.ScopedDevice(self.device)

    def restore(self, rows: NDArray[np.int64], states: dict[str, Floats]) -> None:
        """Put the copies ``rows`` ``[R]`` at rest at given positions.

        ``states`` holds ``qpos`` ``[R, nq]``, ``mocap_pos`` ``[R, M, 3]``, ``mocap_quat`` ``[R, M, 4]``, ``ctrl`` ``[R,
        nu]``.
        """
        data, chosen = self._data, np.zeros(self.copies, bool)
        chosen[rows] = True
        with self._here():
            self._mjw.reset_data(self._model, data, self._warp.array(chosen, dtype=bool))
            for name, values in states.items():
                if not values.size:
                    continue  # a task without fixtures
                field = getattr(data, name)
                whole = field.numpy()
                whole[rows] = values
                field.assign(whole)
            self._mjw.forward(self._model, data)

    def step(self, ctrl: Floats, substeps: int) -> None:
        """Hold servo targets ``[N, nu]`` for ``substeps`` physics steps."""
        with self._here():
            self._data.ctrl.assign(ctrl.astype(np.float32))
            for _ in range(substeps):
                self._mjw.step(self._model, self._data)

    def read(self) -> Readings:
        """Poses and contacts of the present positions.

        Raises SettingError (contacts or constraints did not fit their room since the last reading, so the physics is
        wrong).
        """
        data = self._data
        with self._here():
            self._mjw.forward(self._model, data)
            full = np.flatnonzero(data.overflow.numpy() & self._fatal)
            if len(full):
                raise SettingError(
                    f"contacts, constraints: {self._room} are too few for {len(full)} of {self.copies} copies (the "
                    f"first is row {full[0]}); give more room"
                )
            count = int(data.nacon.numpy()[0])
            solved = data.contact.type.numpy()[:count] & _SOLVED != 0
            pair, world = (values.numpy()[:count][solved] for values in (data.contact.geom, data.contact.worldid))
            names = ("qpos", "qvel", "xpos", "xquat", "xmat", "site_xpos", "site_xmat", "geom_xpos")
            arrays = {name: getattr(data, name).numpy().astype(np.float64) for name in names}
        for name in ("xmat", "site_xmat"):
            arrays[name] = arrays[name].reshape(*arrays[name].shape[:2], 9)
        return Readings(**arrays, pair=pair.reshape(-1, 2), world=world)
