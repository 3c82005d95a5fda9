"""What sampling steps are worth: closed-loop quality of world models at 1, 2, 4 and 8 steps, in one table.

python scripts/sampler_table.py data=runs/unseen/dataset models=bundled,runs/distilled/world_model

Further: steps=1,2,4,8, refinement=0 (or 0,1,2: PDE-Refiner's), out=runs/sampler, and any setting of evaluate-world-model for all
rows. One run of evaluate-world-model per row, on the same episodes with the same noise; a stopped script goes on with the
same command. What fewer steps lose against the model's most is paired: the same episodes are drawn again on both sides.
Writes ``out/table.json`` and prints a Markdown table.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from measured_rows import given, lost_db, number, rate, run, show

SHOWN = (32, 64, 128)
HEADINGS = (
    "model",
    "steps",
    "refined",
    *(f"PSNR@{h}" for h in SHOWN),
    f"dB lost@{SHOWN[-1]}",
    "action swap",
    "outcomes told right %",
    "frames/s",
)


def row_folder(out: Path, model: str, steps: str, refinement: str) -> Path:
    """Where a row is measured."""
    return out / f"{Path(model).parent.name or model}-{steps}-{refinement}"


def measure(model: str, steps: str, refinement: str, data: str, out: Path, common: list[str]) -> dict[str, Any]:
    """Run one row, or read it where it has finished."""
    folder = row_folder(out, model, steps, refinement)
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
    }


def cells(row: dict[str, Any]) -> list[str]:
    """Write one row of the table."""
    errors = (number(row[f"closed_loop.psnr@{h}"]) for h in SHOWN)
    sampler, lost_db = (str(row["steps"]), str(row["refinement_steps"])), number(row["lost"], "+.2f")
    told, speed = rate(row["outcome_alignment"]), f"{row['frames_per_s']:.0f}"
    return [row["model"], *sampler, *errors, lost_db, number(row["action_swap_ratio"]), told, speed]


def main(arguments: list[str]) -> int:
    """Measure every model at every number of steps and print the table."""
    asked = given(arguments)
    if "data" not in asked:
        print(__doc__)
        return 2
    data, out = asked.pop("data"), Path(asked.pop("out", "runs/sampler"))
    choices = [asked.pop(name, default).split(",") for name, default in (("models", "bundled"), ("steps", "1,2,4,8"), ("refinement", "0"))]  # fmt: skip
    common = [f"{key}={value}" for key, value in asked.items()]
    rows = [measure(model, steps, refinement, data, out, common) for model, steps, refinement in product(*choices)]
    for row in rows:
        same = [other for other in rows if other["model"] == row["model"] and not other["refinement_steps"]]
        most = max(same or [row], key=lambda other: other["steps"])
        row["lost"] = lost_db(Path(row["folder"]), Path(most["folder"]), SHOWN[-1], name="sampler-table")
    (out / "table.json").write_text(json.dumps(rows, indent=2) + "\n")
    show(HEADINGS, [cells(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
