"""Check what pip cannot install: Python's version and libraries for rendering. Standard library only."""

import ctypes
import os
import sys

OLDEST = (3, 11)
PACKAGES = "libegl1 libegl-mesa0 libgl1-mesa-dri libglvnd0"  # Debian's and Ubuntu's names
LIBRARIES = ("libEGL.so.1", "libEGL_mesa.so.0")


def faults() -> list[str]:
    """What is missing, each with the command that installs it."""
    found: list[str] = []
    if sys.version_info < OLDEST:
        found.append(
            f"Python {sys.version.split()[0]} is too old, 3.11 is the oldest; "
            "name another: make PYTHON=python3.11 (apt-get install -y python3.11-venv)"
        )
    if os.environ.get("MUJOCO_GL", "egl") == "egl" and sys.platform == "linux" and (missing := missing_libraries()):
        root = "" if os.geteuid() == 0 else "sudo "
        found.append(f"{missing} is missing, MuJoCo renders with it; install it: {root}apt-get install -y {PACKAGES}")
    return found


def missing_libraries() -> str:
    """Name the first library of EGL that cannot be loaded; empty where all can."""
    for library in LIBRARIES:
        try:
            ctypes.CDLL(library)
        except OSError:
            return library
    return ""


def main() -> int:
    """Print what is missing; exit code 1 if anything is."""
    found = faults()
    for fault in found:
        print(f"check_system: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
