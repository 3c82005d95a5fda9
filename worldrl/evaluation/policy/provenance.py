"""On what a result was measured: everything besides the protocol that has moved other people's numbers.

Two results whose protocols are equal may be compared wherever they come from; where their provenance differs, the
comparison says in what. Three levels: the same provenance on the same machine repeats a deterministic suite to the bit; with
another provenance the same rate is expected, not the same episodes; another protocol is another question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from worldrl.core.device import driver, hardware
from worldrl.core.storage.provenance import code_version, package_versions

if TYPE_CHECKING:
    from worldrl.simulators.pool import SimulatorPool

Provenance = Mapping[str, str]
"""Field to value; a field that is missing was not recorded."""
THEN = ", then "
"""Between the values of an evaluation that went on elsewhere."""
PACKAGES = ("python", "torch", "numpy", "mujoco")


def provenance(physics: Mapping[str, str], *, device: str, workers: int, envs: int, **more: str) -> Provenance:
    """Write down on what is measured.

    Args:
        physics: packages that move it, by name, as the protocol has them.
        device: torch device of the policy.
        workers: simulator processes.
        envs: environments in all, and the largest batch of a decision.
        **more: how the policy computes, and what the suite says of its pictures and environment; empty values are left out.
    """
    code, versions = code_version(), package_versions()
    return {
        "code": f"{code['version']} at {code['commit']}" if code["commit"] else str(code["version"]),
        **{name: versions[name] for name in PACKAGES},
        "physics": ", ".join(f"{name} {version}" for name, version in physics.items()),
        "device": device,
        "hardware": hardware(device),
        "processor": hardware("cpu"),
        "workers": str(workers),
        "envs": str(envs),
        **{name.replace("_", " "): value for name, value in {"driver": driver(), **more}.items() if value},
    }


def suite_provenance(
    pool: SimulatorPool, physics: Mapping[str, str], *, device: str, draws: bool, **computing: str
) -> Provenance:
    """As :func:`provenance`, of a foreign suite whose workers run and whose physics was probed.

    Args:
        pool: the workers.
        physics: see :func:`provenance`.
        device: torch device of the policy.
        draws: whether anybody looks at pictures.
        **computing: how the policy computes.
    """
    pictures = {"render": render_of(pool), **{key: str(pool.probed.get(key, "")) for key in ("renderer", "frame")}}
    return provenance(
        physics,
        device=device,
        workers=pool.workers,
        envs=pool.slots,
        suite_python=str(pool.suite["python"]),
        **computing,
        **(pictures if draws else {}),
    )


def render_of(pool: SimulatorPool) -> str:
    """GL back end of the workers, or the device that they draw on."""
    return pool.launch.variables.get("MUJOCO_GL") or str(pool.launch.options.get("device", ""))


def continued(earlier: Provenance, now: Provenance) -> Provenance:
    """Provenance of an evaluation that was begun under ``earlier`` and goes on under ``now``."""
    return {name: _both(earlier.get(name), now.get(name)) for name in dict.fromkeys([*earlier, *now])}


def _both(earlier: str | None, now: str | None) -> str:
    known, new = _said(earlier), _said(now)
    return known if new in known.split(THEN) else f"{known}{THEN}{new}"


def differences(a: Provenance, b: Provenance) -> list[str]:
    """One line per field in which two results' provenance differs."""
    names = dict.fromkeys([*a, *b])
    return [
        f"{name}: {_said(a.get(name))} against {_said(b.get(name))}" for name in names if a.get(name) != b.get(name)
    ]


def _said(value: str | None) -> str:
    return "not recorded" if value is None else value
