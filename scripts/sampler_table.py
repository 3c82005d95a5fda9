"""What sampling steps are worth: closed-loop quality of world models at 1, 2, 4 and 8 steps, in one table.

python scripts/sampler_table.py data=runs/unseen/dataset models=bundled,runs/x/world_model flow_map=runs/collect/dataset

Further: steps=1,2,4,8, refinement=0,1 (PDE-Refiner's steps), out=runs/sampler, and any setting of evaluate-world-model for all
rows. ``flow_map=FOLDER,...`` adds rows of each model made a flow map (AnyFlow) on these recordings, which must not be the measured
ones; ``flow_map.KEY=VALUE`` is a setting of that training (flow_map.on_policy_steps=0). One run of evaluate-world-model per row, on
the same episodes with the same noise; a stopped script continues with the same command. What a row loses against its own weights' most
steps, unrefined, is paired: the same episodes are drawn again on both sides. Writes ``out/table.json`` and prints a
Markdown table.
"""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from measured_rows import cpu_seconds, given, lost_db, number, rate, run, show

SHOWN = (32, 64, 128, 256)
LOST = (128, 256)
DEFAULTS = {"models": "bundled", "steps": "1,2,4,8", "refinement": "0,1"}
FLOW_MAP = {
    "steps": "0", "codec_steps": "0", "flow_map_steps": "1500", "on_policy_steps": "300", "outcome_steps": "400",
}  # fmt: skip
"""The map, then the outcome head, which reads what the network computes; nothing else."""
HEADINGS = (
    "model", "steps", "refined", *(f"PSNR@{h}" for h in SHOWN), *(f"dB lost@{h}" for h in LOST), "action swap",
    "outcomes told right %", "frames/s",
)  # fmt: skip


def short(model: str) -> str:
    """Name a model in folders."""
    return Path(model).parent.name or model


def mapped(model: str, data: str, out: Path, changes: dict[str, str]) -> str:
    """Make a model a flow map, or take the one that has been; return its folder."""
    folder = out / f"flow-map-{short(model)}"
    training = (f"training.{key}={value}" for key, value in (FLOW_MAP | changes).items())
    run(folder, "train-world-model", f"start={model}", f"data=[{data}]", "gates=warn", *training)
    return str(folder / "world_model")


def measure(model: str, steps: str, refinement: str, data: str, out: Path, common: list[str]) -> dict[str, Any]:
    """Run one row, or read it where it has finished."""
    folder = out / f"{short(model)}-{steps}-{refinement}"
    horizons = ",".join(map(str, SHOWN))
    found = run(
        folder, "evaluate-world-model", f"world_model={model}", f"data=[{data}]", f"sampler.steps={steps}",
        f"sampler.refinement_steps={refinement}", f"horizons=[{horizons}]", "probe.steps=0", "speed_rows=[64]", *common,
    )  # fmt: skip
    shown = (*(f"closed_loop.psnr@{h}" for h in SHOWN), "action_swap_ratio", "outcome_alignment")
    return {
        "model": model,
        "folder": str(folder),
        **found["sampler"],
        **{name: found[name] for name in shown},
        "frames_per_s": found["imagined_frames_per_s"]["64"],
        "cpu_minutes": cpu_seconds(folder) / 60,
    }


def lost(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the decibels that a row loses at each horizon against its model's most steps without refinement."""
    plain = [other for other in rows if other["model"] == row["model"] and not other["refinement_steps"]]
    most = max(plain or [row], key=lambda other: other["steps"])
    pair = (Path(row["folder"]), Path(most["folder"]))
    return {str(horizon): lost_db(*pair, horizon, name="sampler-table") for horizon in LOST}


def cells(row: dict[str, Any]) -> list[str]:
    """Write one row of the table."""
    errors = (number(row[f"closed_loop.psnr@{h}"]) for h in SHOWN)
    behind = (number(found, "+.2f") for found in row["lost"].values())
    outcomes, speed = rate(row["outcome_alignment"]), f"{row['frames_per_s']['decoded']:.0f}"
    sampler = (str(row["steps"]), str(row["refinement_steps"]))
    return [row["model"], *sampler, *errors, *behind, number(row["action_swap_ratio"]), outcomes, speed]


def main(arguments: list[str]) -> int:
    """Measure every model at every number of steps and print the table."""
    asked = given(arguments)
    if "data" not in asked:
        print(__doc__)
        return 2
    data, out, recordings = asked.pop("data"), Path(asked.pop("out", "runs/sampler")), asked.pop("flow_map", None)
    models, *choices = (asked.pop(name, default).split(",") for name, default in DEFAULTS.items())
    changes = {key.removeprefix("flow_map."): asked.pop(key) for key in [*asked] if key.startswith("flow_map.")}
    common = [f"{key}={value}" for key, value in asked.items()]
    if recordings is not None:
        models += [mapped(model, recordings, out, changes) for model in models]
    rows = [measure(model, *choice, data, out, common) for model, *choice in product(models, *choices)]
    for row in rows:
        row["lost"] = lost(row, rows)
    (out / "table.json").write_text(json.dumps(rows, indent=2) + "\n")
    show(HEADINGS, [cells(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
