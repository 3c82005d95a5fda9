"""Copies of one scene, stepped together by MuJoCo Warp in float32: on a GPU, or slowly on warp's CPU device.

C MuJoCo and MuJoCo Warp solve the same equations, one in float64 and the other in float32, so copies that start alike part
slowly, and where contacts decide, sooner (``tests/rollout/test_warp.py`` bounds it, ``docs/guide/simulators.md`` has numbers).

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
_SOLVED = 1
"""Bit of a contact that pushes, ``ContactType.CONSTRAINT``, a name that mujoco-warp 4.0 does not export."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Readings:
    """What is read of all copies after a control step, named as in MuJoCo.

    Attributes:
        qpos: float64 ``[N, nq]``.
        qvel: float64 ``[N, nv]``.
        xpos: float64 ``[N, bodies, 3]`` (m).
        xquat: float64 ``[N, bodies, 4]``, (w, x, y, z).
        xmat: float64 ``[N, bodies, 9]``.
        site_xpos: float64 ``[N, sites, 3]`` (m).
        site_xmat: float64 ``[N, sites, 9]``.
        geom_xpos: float64 ``[N, geoms, 3]`` (m).
        pair: int ``[C, 2]``, geoms of each contact of any copy.
        world: int ``[C]``, which copy a contact is of.
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
        """One copy, with those names of ``mujoco.MjData`` that the suite's predicates read.

        Args:
            row: which.
            geom_id: geoms that are asked for by name.
        """
        names = ("qpos", "qvel", "xpos", "xquat", "xmat", "site_xpos", "site_xmat")
        contact = SimpleNamespace(geom=self.pair[self.world == row])

        def geom(name: str) -> Any:
            return SimpleNamespace(xpos=self.geom_xpos[row, geom_id[name]])

        return SimpleNamespace(**{name: getattr(self, name)[row] for name in names}, contact=contact, geom=geom)


class WarpPhysics:
    """``N`` copies of a model on one device.

    Args:
        model: ``mujoco.MjModel``.
        copies: ``N``.
        device: warp's name of it, such as ``"cuda:0"`` or ``"cpu"``; empty takes a GPU where there is one.
        contacts: room for contacts, per copy on average.
        constraints: room for constraint rows, of each copy.

    Raises:
        MissingExtraError: mujoco-warp is not installed.
        SettingError: unknown device, or a model with something that MuJoCo Warp lacks.
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
            except RuntimeError as error:  # what it does not implement is one, too
                raise SettingError(f"MuJoCo Warp cannot simulate this task's model: {error}") from error
            self._data = self._mjw.make_data(model, nworld=copies, nconmax=contacts, njmax=constraints)
        kinds = self._mjw.OverflowType
        self._fatal = int(kinds.NEFC | kinds.NJMAX_NNZ | kinds.BROADPHASE | kinds.NARROWPHASE | kinds.CCD)

    def _here(self) -> Any:
        return self._warp.ScopedDevice(self.device)

    def restore(self, rows: NDArray[np.int64], states: dict[str, Floats]) -> None:
        """Put copies at rest at given positions.

        Args:
            rows: int ``[R]``, which.
            states: ``qpos`` ``[R, nq]``, ``mocap_pos`` ``[R, M, 3]``, ``mocap_quat`` ``[R, M, 4]``, ``ctrl`` ``[R, nu]``.
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
        """Hold servo targets ``[N, nu]`` for so many physics steps."""
        with self._here():
            self._data.ctrl.assign(ctrl.astype(np.float32))
            for _ in range(substeps):
                self._mjw.step(self._model, self._data)

    def read(self) -> Readings:
        """Poses and contacts of the present positions.

        Raises:
            SettingError: there was no room for all contacts or constraints since the last reading, so the physics is wrong.
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
