"""What a result was measured on: everything besides the protocol that may change a number.

Results of equal protocols may be compared; where their provenance differs, the comparison lists the differences. The same provenance
on the same machine repeats a deterministic suite bit by bit. With another provenance, the same rate is expected, not the same episodes.
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
"""Separates the values of an evaluation that was resumed elsewhere."""
UNRECORDED = "not recorded"
PACKAGES = ("python", "torch", "numpy", "mujoco")


def provenance(physics: Mapping[str, str], *, device: str, workers: int, envs: int, **more: str) -> Provenance:
    """Collect the provenance of a measurement.

    ``physics`` holds versions of packages as in the protocol; ``envs`` is the number of all environments, and the largest batch of a
    decision. Of ``more`` (numerics of the policy, rendering and environment of the suite) empty values are left out.
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
    """Provenance (see :func:`provenance`) of an external suite with started and probed workers; ``draws``: images are rendered."""
    images = {"render": render_of(pool), **{key: str(pool.probed.get(key, "")) for key in ("renderer", "frame")}}
    return provenance(
        physics,
        device=device,
        workers=pool.workers,
        envs=pool.slots,
        suite_python=str(pool.suite["python"]),
        **computing,
        **(images if draws else {}),
    )


def render_of(pool: SimulatorPool) -> str:
    """GL back end of the workers, or their rendering device."""
    return pool.launch.variables.get("MUJOCO_GL") or str(pool.launch.options.get("device", ""))


def continued(earlier: Provenance, now: Provenance) -> Provenance:
    """Provenance of an evaluation that was begun under ``earlier`` and resumed under ``now``."""
    found: dict[str, str] = {}
    for name in dict.fromkeys([*earlier, *now]):
        known, new = earlier.get(name, UNRECORDED), now.get(name, UNRECORDED)
        found[name] = known if new in known.split(THEN) else f"{known}{THEN}{new}"
    return found


def differences(a: Provenance, b: Provenance) -> list[str]:
    """One line per field in which two results' provenance differs."""
    pairs = {name: (a.get(name, UNRECORDED), b.get(name, UNRECORDED)) for name in [*a, *b]}
    return [f"{name}: {first} against {second}" for name, (first, second) in pairs.items() if first != second]
