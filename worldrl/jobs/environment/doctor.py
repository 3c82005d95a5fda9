"""``worldrl doctor``: what works on this machine, and the command that mends what does not.

Each check is a function that returns a detail or raises :class:`Failure` with the command that mends it. Rendering
runs in a child process with a time limit, because a broken GL driver crashes or hangs instead of raising.
"""

from __future__ import annotations

import importlib
import io
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from worldrl.core.errors import WorkerEnvironmentError, WorldrlError
from worldrl.core.extras import REINSTALL
from worldrl.core.memory_pages import has_large_pages
from worldrl.core.storage.capacity import available_memory
from worldrl.core.storage.run import RunDirectory
from worldrl.jobs.environment.setup_adopt import lacking_checkout
from worldrl.paths import bundled_weights
from worldrl.settings import as_plain, positive, resume_command, setting
from worldrl.simulators.environments import CHECKED, NAMES, find_environment
from worldrl.workers.link.rendering import RENDER_PROGRAM, choose_backend

EXTRAS = {
    "stable_baselines3": "sb3",
    "minari": "offline",
    "imageio": "offline",
    "websockets": "serve",
    "msgpack": "serve",
    "starlette": "play",
    "uvicorn": "play",
    "mujoco_warp": "warp",
    "timm": "timm",
    "huggingface_hub": "hub",
    "ray": "ray",
    "wandb": "wandb",
    "rerun": "rerun",
    "diffusers": "wan",
    "peft": "wan",
    "accelerate": "wan",
}
"""Module → the extra that brings it."""


@dataclass
class DoctorSettings:
    """Settings of ``worldrl doctor``."""

    run_dir: str = setting("runs/doctor", "folder that receives result.json")
    seed: int = setting(0, "recorded only: no check draws random numbers")
    render_timeout_s: float = setting(60.0, "seconds one rendering back end may take")
    min_disk_gb: float = setting(5.0, "free disk space that the cpu preset needs, in GB")
    min_memory_gb: float = setting(3.0, "available memory that the cpu preset needs, in GB")

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("render_timeout_s", "min_disk_gb", "min_memory_gb"):
            positive(name, getattr(self, name))


class Failure(Exception):  # noqa: N818  (a finding, not an error of ours)
    """A check found something missing.

    ``fix`` is the command that mends it.
    """

    def __init__(self, detail: str, fix: str) -> None:
        super().__init__(detail)
        self.detail, self.fix = detail, fix


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; ``fix`` is empty where it passed."""

    name: str
    required: bool
    passed: bool
    detail: str
    fix: str = ""

    def line(self) -> str:
        """One line for people."""
        mark = "ok  " if self.passed else "FAIL" if self.required else "note"
        return f"{mark} {self.name:<10} {self.detail}" + (f" -> {self.fix}" if self.fix else "")


# --- the checks ----------------------------------------------------------------------------------------------------


def check_python() -> str:
    """Python itself and the machine."""
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def check_torch() -> str:
    """Torch multiplies matrices correctly on the best device there is."""
    torch = importlib.import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    side = torch.arange(16.0, device=device).reshape(4, 4)
    if not torch.allclose(side @ torch.eye(4, device=device), side):
        raise Failure(f"torch {torch.__version__} multiplies wrongly on {device}", REINSTALL)
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    return f"{torch.__version__}, device {device} ({name})"


def check_render(timeout_s: float) -> str:
    """MuJoCo renders off screen, with the back end chosen by MUJOCO_GL, else EGL, else OSMesa."""
    chosen = os.environ.get("MUJOCO_GL")
    backends = [chosen] if chosen else ["egl", "osmesa"] if sys.platform == "linux" else ["glfw"]
    backend, reasons = choose_backend(sys.executable, timeout_s, backends, RENDER_PROGRAM)
    if backend is None:
        raise Failure(
            "; ".join(reasons), "apt-get install -y libegl1 libgl1-mesa-dri libglvnd0 && export MUJOCO_GL=egl"
        )
    hint = f"; set MUJOCO_GL={backend}" if reasons else ""
    return f"mujoco {version('mujoco')} renders with {backend}{hint}"


def check_video() -> str:
    """PyAV writes one H.264 frame and reads it back."""
    av = importlib.import_module("av")
    frame = np.full((64, 64, 3), 180, dtype=np.uint8)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    buffer.seek(0)
    with av.open(buffer) as container:
        decoded = next(container.decode(video=0)).to_ndarray(format="rgb24")
    error = float(np.abs(decoded.astype(float) - frame).mean())
    if decoded.shape != frame.shape or error > 8:
        raise Failure(f"a frame came back with mean error {error:.1f} of 255", "pip install --force-reinstall av")
    return f"av {av.__version__} encodes and decodes H.264"


def check_disk(folder: Path, wanted_gb: float) -> str:
    """Free space where the run directory goes."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    if free < wanted_gb:
        raise Failure(f"{free:.1f} GB free, {wanted_gb:g} wanted", "worldrl COMMAND run_dir=/a/larger/disk")
    return f"{free:.1f} GB free"


def check_memory(wanted_gb: float) -> str:
    """Memory that a run may take without swapping."""
    available = available_memory() / 1e9
    if available < wanted_gb:
        raise Failure(f"{available:.1f} GB available, {wanted_gb:g} wanted", "worldrl COMMAND preset=tiny")
    return f"{available:.1f} GB available, in {'large' if has_large_pages() else 'small'} pages"


def check_shm() -> str:
    """Shared memory, which containers keep at 64 MB unless a setting says otherwise."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return "no /dev/shm on this system; none is needed here"
    free = shutil.disk_usage(folder).free / 1e6
    if free < 128:
        raise Failure(f"{free:.0f} MB free in /dev/shm", "docker run --shm-size=1g ...")
    return f"{free:.0f} MB free"


def check_writable(folder: Path) -> str:
    """The run directory takes a file, a flush to disk and a rename."""
    probe = folder / f".probe-{uuid.uuid4().hex}"
    final = probe.with_suffix(".renamed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as file:
            file.write(b"worldrl")
            file.flush()
            os.fsync(file.fileno())
        probe.rename(final)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror}", "worldrl COMMAND run_dir=/a/writable/folder") from error
    finally:
        for leftover in (probe, final):
            with suppress(OSError):
                leftover.unlink()
    return f"{folder} is writable"


def check_weights() -> str:
    """Every bundled artefact matches the checksums of its manifest."""
    folders = bundled_weights()
    if not folders:
        return "none are bundled; worldrl train-policy and train-world-model start from nothing"
    artefact = importlib.import_module("worldrl.core.storage.artefact")
    for folder in folders:
        artefact.read_artefact(folder, kind=artefact.read_manifest(folder)["kind"])
    return ", ".join(folder.name for folder in folders)


def check_extras() -> str:
    """Optional packages."""
    missing = list(dict.fromkeys(extra for module, extra in EXTRAS.items() if find_spec(module) is None))
    if missing:
        raise Failure(
            f"not installed: {', '.join(missing)}", f"pip install -c constraints.txt -e '.[{','.join(missing)}]'"
        )
    return ", ".join(dict.fromkeys(EXTRAS.values()))


def check_environment(name: str) -> str:
    """A simulator's own environment is there, and has passed the check of its setup."""
    try:
        environment = find_environment(name)
    except WorkerEnvironmentError as error:
        raise Failure(str(error).partition(";")[0].removeprefix(f"{name}: "), f"worldrl setup {name}") from error
    if "checkout" in environment.record:
        lacking = lacking_checkout(str(environment.record["checkout"]))
        if lacking:
            raise Failure(lacking[0], f"worldrl setup {name} python=INTERPRETER checkout=FOLDER")
    if "python" in environment.record:
        where = environment.record.get("checkout", environment.folder)
        return f"{environment.python}, {where}; the adapter was never run against the real one"
    assets = str(environment.record.get("assets", ""))
    if not environment.record.get(CHECKED, False):
        raise Failure(f"{environment.folder} has not passed setup's check", f"worldrl setup {name}")
    if not assets:
        return f"{environment.folder}, assets of its package" if name == "libero" else str(environment.folder)
    if not Path(assets).is_dir():
        raise Failure(f"its assets {assets} are gone", f"worldrl setup {name}")
    note = str(environment.record.get("assets_note", ""))
    return f"{environment.folder}, assets {assets}" + (f" ({note})" if note else "")


def examine(name: str, required: bool, check: Callable[[], str]) -> Finding:
    """Run one check; an unexpected exception is a failure of that check, never of the doctor."""
    try:
        return Finding(name, required, True, check())
    except Failure as failure:
        return Finding(name, required, False, failure.detail, failure.fix)
    except Exception as error:
        return Finding(name, required, False, f"{type(error).__name__}: {error}", REINSTALL)


def examine_all(settings: DoctorSettings) -> list[Finding]:
    """Run every check, in the order of what the others need."""
    folder = Path(settings.run_dir)
    return [
        examine("python", True, check_python),
        examine("torch", True, check_torch),
        examine("render", True, lambda: check_render(settings.render_timeout_s)),
        examine("video", True, check_video),
        examine("run_dir", True, lambda: check_writable(folder)),
        examine("disk", False, lambda: check_disk(folder.resolve(), settings.min_disk_gb)),
        examine("memory", False, lambda: check_memory(settings.min_memory_gb)),
        examine("shm", False, check_shm),
        examine("weights", True, check_weights),
        examine("extras", False, check_extras),
        *(examine(name, False, partial(check_environment, name)) for name in NAMES),
    ]


def write_result(settings: DoctorSettings, findings: Sequence[Finding]) -> dict[str, Any]:
    """Write ``result.json`` into the run directory and return its metrics."""
    metrics = {finding.name: {k: v for k, v in vars(finding).items() if k != "name"} for finding in findings}
    with RunDirectory.open(
        Path(settings.run_dir), command="doctor", config=as_plain(settings), resume_command=resume_command("doctor")
    ) as run:
        run.write_result(metrics, seed=settings.seed, device="cpu")
    return metrics


def main(settings: DoctorSettings) -> dict[str, Any]:
    """Examine the machine, print one line per check and write ``result.json``.

    Returns one entry per check: ``required``, ``passed``, ``detail`` and ``fix``. Raises WorldrlError: a required check
    failed; every line was printed before.
    """
    findings = examine_all(settings)
    console = Console(soft_wrap=True, markup=False, highlight=False)
    for finding in findings:
        console.print(finding.line())
    failed = [finding.name for finding in findings if finding.required and not finding.passed]
    metrics = write_result(settings, findings) if "run_dir" not in failed else {}
    if failed:
        raise WorldrlError(f"doctor: required checks failed: {', '.join(failed)}; run the commands after -> above")
    return metrics
