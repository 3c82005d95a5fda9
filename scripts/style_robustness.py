"""Does style augmentation bear unseen styles? What a world model loses in looks that it has never seen, with and without it.

python scripts/style_robustness.py data=runs/collect/dataset unseen=runs/unseen/dataset

Further: steps=300 (of dynamics and outcome head), seed=0, out=runs/styles, start=bundled, and any setting of
evaluate-world-model for all measurements (episodes=, batch=, ...).

1. ``unseen`` is replayed in the eight looks with names, ``data`` in sampled ones, the same motion in both.
2. From the same weights, for as many steps: ``plain`` learns from ``data`` twice over, ``styled`` from ``data`` and its other looks.
3. ``start``, ``plain`` and ``styled`` are measured on the unseen episodes as they are and in the looks of 1.

The loss is the outcome alignment as recorded less that in other looks, of the same episodes; asked is that styled loses at most
a third of what plain loses. A stopped script continues with the same command. Writes ``out/table.json`` and prints a Markdown
table.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from measured_rows import cpu_seconds, given, measures, metrics, number, rate, run, show
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import Bootstrap, bootstrap
from worldrl_envs.style import TEST_STYLES

LOOKS = f"styles=[{','.join(TEST_STYLES)}]"
ALLOWED = 1 / 3  # Share of the loss without augmentation that may be left with it
TRAINED = ("plain", "styled")
HEADINGS = ("model", "as recorded %", "other looks %", "lost, points", "PSNR@32", "PSNR@32, other looks", "false successes %", "other looks %", "CPU minutes")  # fmt: skip


def recordings(out: Path, options: dict[str, str]) -> dict[str, Path]:
    """Show both recordings in other looks."""
    found = {"data": Path(options["data"]), "unseen": Path(options["unseen"])}
    for name, looks in (("unseen", LOOKS), ("data", "styles=[sampled]")):
        run(out / f"{name}-looks", "restyle", f"data={found[name]}", looks, f"seed={options['seed']}")
        found[f"{name}-looks"] = out / f"{name}-looks" / "dataset"
    return found


def trained(name: str, out: Path, recorded: dict[str, Path], options: dict[str, str]) -> Path:
    """Train from the same weights with or without other looks."""
    # Twice the same is what the other row has in two looks: equally many episodes, equally many held out.
    second = recorded["data-looks" if name == "styled" else "data"]
    run(
        out / name, "train-world-model", f"start={options['start']}", f"data=[{recorded['data']},{second}]",
        f"seed={options['seed']}", "gates=warn", f"training.steps={options['steps']}",
        f"training.outcome_steps={options['steps']}",
    )  # fmt: skip
    return out / name / "world_model"


def measured(name: str, world: str, out: Path, recorded: dict[str, Path], common: list[str]) -> tuple[Path, Path]:
    """Measure a world model as recorded and in other looks; return both runs."""
    folders = out / f"{name}-as-recorded", out / f"{name}-other-looks"
    for folder, data in zip(folders, ("unseen", "unseen-looks"), strict=True):
        run(
            folder, "evaluate-world-model", f"world_model={world}", f"data=[{recorded[data]}]", "horizons=[32]",
            "probe.steps=0", "speed_rows=[1]", "speed_chunks=1", *common,
        )  # fmt: skip
    return folders


def predicted_right(folders: tuple[Path, Path]) -> NDArray[np.float64]:
    """Whether each episode's outcome is predicted right as recorded and in another look, ``[E, 2]``."""
    both = [measures(folder, "name", "predicted", "actual") for folder in folders]
    if not np.array_equal(both[0].name, both[1].name):
        raise SystemExit(f"{folders[1]}: other episodes than in {folders[0]}; was unseen recorded anew?")
    return np.stack([part.predicted == part.actual for part in both], axis=1).astype(np.float64)


def loss(right: NDArray[np.float64]) -> float:
    """Return how much lower the second column's mean is than the first one's, in points."""
    return 100 * float(right[:, 0].mean() - right[:, 1].mean())


def row(name: str, folders: tuple[Path, Path], cost: float) -> dict[str, Any]:
    """Collect a model's numbers."""
    plain, looks = map(metrics, folders)
    lost: Bootstrap = bootstrap(predicted_right(folders), loss, generator=numpy_stream(0, "style-robustness"))
    names = ("outcome_alignment", "closed_loop.psnr@32", "false_success_rate")
    return {"model": name, "lost": lost, "cpu_minutes": cost / 60} | {name: [plain[name], looks[name]] for name in names}  # fmt: skip


def excess(plain: tuple[Path, Path], styled: tuple[Path, Path]) -> Bootstrap:
    """Return styled's loss less the share of plain's that is allowed, in points; at most 0 is asked."""
    right = np.concatenate([predicted_right(plain), predicted_right(styled)], axis=1)

    def over(some: NDArray[np.float64]) -> float:
        return loss(some[:, 2:]) - ALLOWED * loss(some[:, :2])

    return bootstrap(right, over, generator=numpy_stream(0, "style-robustness", "excess"))


def cells(found: dict[str, Any]) -> list[str]:
    """Write one row of the table."""
    right, false = (map(rate, found[name]) for name in ("outcome_alignment", "false_success_rate"))
    psnr = map(number, found["closed_loop.psnr@32"])
    return [found["model"], *right, number(found["lost"], "+.1f"), *psnr, *false, f"{found['cpu_minutes']:.0f}"]


def main(arguments: list[str]) -> int:
    """Measure start, plain and styled, print the table and the verdict."""
    asked = given(arguments)
    if not {"data", "unseen"} <= asked.keys():
        print(__doc__)
        return 2
    defaults = {"steps": "300", "seed": "0", "start": "bundled"}
    options = {name: asked.pop(name, value) for name, value in defaults.items()}
    options |= {name: asked.pop(name) for name in ("data", "unseen")}
    out, common = Path(asked.pop("out", "runs/styles")), [f"{key}={value}" for key, value in asked.items()]
    recorded = recordings(out, options)
    runs, rows = {}, []
    for name in ("start", *TRAINED):
        world = options["start"] if name == "start" else str(trained(name, out, recorded, options))
        runs[name] = measured(name, world, out, recorded, common)
        rows.append(row(name, runs[name], cpu_seconds(*runs[name], *([] if name == "start" else [out / name]))))
    over = excess(runs["plain"], runs["styled"])
    (out / "table.json").write_text(json.dumps({"rows": rows, "excess_over_a_third": over}, indent=2) + "\n")
    show(HEADINGS, [cells(found) for found in rows])
    print(f"styled's loss less a third of plain's: {number(over, '+.1f')} points; asked: at most 0")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
