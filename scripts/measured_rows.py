"""What the scripts with one measured row per line share: worldrl commands with their cost, their numbers, tables."""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.aliases import current_tokens
from worldrl.core.renames import COMMANDS, current_results
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import Bootstrap, bootstrap
from worldrl.evaluation.report.tables import markdown
from worldrl.evaluation.world_model.battery import psnr_of_mean

MEASURED = "measured.json"


def run(folder: Path, command: str, *overrides: str) -> dict[str, Any]:
    """Run a worldrl command in a run directory and return its metrics; nothing where the same command has finished.

    Of a setting given twice the last counts. Processor time is kept beside the result, without that of killed commands.
    Raises SystemExit where another command has finished there.
    """
    settled = {override.split("=", 1)[0]: override for override in overrides}
    asked, file = [command, *settled.values()], folder / MEASURED
    if file.exists():
        name, *tokens = json.loads(file.read_text())["command"]
        name = COMMANDS.get(name, name)
        if (measured := [name, *current_tokens(name, tokens)[0]]) != asked:
            changed = sorted(set(measured) ^ set(asked))
            raise SystemExit(f"{folder}: was measured by another command ({', '.join(changed)}); give another out=")
        return metrics(folder)
    before = _children()
    subprocess.run([sys.executable, "-m", "worldrl", *asked, f"run_dir={folder}"], check=True)
    file.write_text(json.dumps({"command": asked, "cpu_seconds": _children() - before}) + "\n")
    return metrics(folder)


def metrics(folder: Path) -> dict[str, Any]:
    """Read the metrics of a finished run, of an earlier version too."""
    result = json.loads((folder / "result.json").read_text())
    return current_results(result["metrics"], result.get("command", ""))


def cpu_seconds(*folders: Path) -> float:
    """Processor time of some runs."""
    return sum(json.loads((folder / MEASURED).read_text())["cpu_seconds"] for folder in folders)


def measures(folder: Path, *names: str) -> SimpleNamespace:
    """Read these fields of an evaluation's ``Measures`` alone, by episode; an earlier version may lack others."""
    files = sorted((folder / "stages" / "02-replays").glob("*.npz"))
    parts = {name: [_array(file, name) for file in files] for name in names}
    return SimpleNamespace(**{name: np.concatenate(part) for name, part in parts.items()})


def _array(file: Path, name: str) -> NDArray[Any]:
    with np.load(file, allow_pickle=False) as data:
        return data[name]


def errors_at(folder: Path, horizon: int) -> NDArray[np.float64]:
    """Return the squared error ``[E]`` of each episode's frame at a horizon."""
    frame = metrics(folder)["drift"]["psnr"]["step"].index(horizon)
    return measures(folder, "error").error[:, frame]


def lost_db(folder: Path, best: Path, horizon: int, *, name: str) -> Bootstrap:
    """Return how many dB of PSNR one evaluation lies below another, in pairs of episodes; ``name`` fixes the draws."""
    pairs = np.stack([errors_at(part, horizon) for part in (best, folder)], axis=1)
    return bootstrap(pairs, lambda some: float(np.subtract(*psnr_of_mean(some))), generator=numpy_stream(0, name))


def number(found: dict[str, Any], form: str = ".1f") -> str:
    """Write a measured number with its interval."""
    value, lo, hi = (format(found[name], form) for name in ("value", "lo", "hi"))
    return f"{value} [{lo}, {hi}]"


def rate(found: dict[str, Any] | None) -> str:
    """Write a rate in percent with its interval; a dash where nothing was counted."""
    return "–" if found is None else f"{100 * found['rate']:.0f} [{100 * found['lo']:.0f}, {100 * found['hi']:.0f}]"


def given(arguments: Sequence[str]) -> dict[str, str]:
    """Read ``name=value`` arguments."""
    return dict(argument.split("=", 1) for argument in arguments if "=" in argument)


def show(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print(markdown(headings, rows))


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
