"""Both dynamics backends from nothing in the same processor time on the same episodes: which one predicts better?

python scripts/backends_table.py data=runs/a/dataset,runs/b/dataset unseen=runs/unseen/dataset minutes=15

Further: seed=100, episodes=4 (evaluated per task), batch.edm_unet=8, out=runs/backends, and any setting of
train-world-model for both. ``flow_transformer`` learns its frame codec in a fifth of the time, ``edm_unet`` (DIAMOND's
size) works on pixels. What a step costs is measured first: trainings of a few steps, whose difference leaves out what
does not grow with steps (reading, encoding, gates); nor does the table count that. Give OMP_NUM_THREADS=1: threads that wait
for each other count as processor time. A stopped script continues with the same
command. Writes ``out/table.json`` and prints a Markdown table.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measured_rows import cpu_seconds, given, metrics, number, run, show

FLOW, UNET = "flow_transformer", "edm_unet"
BACKENDS = (FLOW, UNET)
HORIZONS = (8, 32, 64, 128)
SHOWN = (*(f"closed_loop.psnr@{h}" for h in HORIZONS), "action_swap_ratio")
CODEC, DYNAMICS = "codec_steps", "steps"
SHARES: Mapping[str, Mapping[str, float]] = {FLOW: {CODEC: 0.2, DYNAMICS: 0.8}, UNET: {DYNAMICS: 1.0}}
TRIED: Mapping[str, tuple[int, int]] = {FLOW: (10, 60), UNET: (2, 8)}
"""Steps of the two trainings that tell a step's cost."""

COMMON = ("start=scratch", "gates=warn", "held_out=0.02", "training.outcome_steps=0")
USUAL: Mapping[str, tuple[str, ...]] = {
    FLOW: (
        "training.codec_batch=48", "training.codec_learning_rate=1e-3", "training.batch=32", "training.learning_rate=6e-4",
        "training.warmup=50", "training.ema_decay=0.99", "training.bootstrap=0.25",
    ),
    UNET: (
        "training.batch=8", "training.unroll=1", "training.learning_rate=3e-4", "training.warmup=10", "training.ema_decay=0.9",
        "training.bootstrap=0",
    ),
}  # fmt: skip
HEADINGS = ("backend", "steps", "CPU minutes", *(f"PSNR@{h}" for h in HORIZONS), "action swap")


def train(folder: Path, kind: str, steps: Mapping[str, int], options: Mapping[str, str], common: list[str]) -> float:
    """Train one backend; return its processor time in seconds."""
    given_steps = (f"training.{name}={steps.get(name, 0)}" for name in (CODEC, DYNAMICS))
    run(
        folder, "train-world-model", f"data=[{options['data']}]", f"seed={options['seed']}", f"model.dynamics.kind={kind}",
        *COMMON, *USUAL[kind], *common, *given_steps,
    )  # fmt: skip
    return cpu_seconds(folder)


def step_costs(out: Path, kind: str, options: Mapping[str, str], common: list[str]) -> tuple[float, dict[str, float]]:
    """Return the processor seconds of what does not grow with steps, and of one step of each part."""
    few, more = TRIED[kind]
    least = dict.fromkeys(SHARES[kind], few)
    start = train(out / f"{kind}-few", kind, least, options, common)
    spent = {part: train(out / f"{kind}-{part}", kind, {**least, part: more}, options, common) for part in least}
    costs = {part: (total - start) / (more - few) for part, total in spent.items()}
    return start - few * sum(costs.values()), costs


def measure(kind: str, out: Path, seconds: float, options: Mapping[str, str], common: list[str]) -> dict[str, Any]:
    """Train one backend for its time and measure it on unseen episodes."""
    fixed, costs = step_costs(out, kind, options, common)
    steps = {part: max(1, round(share * seconds / costs[part])) for part, share in SHARES[kind].items()}
    spent = train(out / kind, kind, steps, options, common) - fixed
    unseen = out / f"{kind}-unseen"
    run(
        unseen, "evaluate-world-model", f"world_model={out / kind / 'world_model'}", f"data=[{options['unseen']}]",
        f"episodes={options['episodes']}", f"horizons=[{','.join(map(str, HORIZONS))}]", "threads=1", "probe.steps=0", "speed_rows=[1]",
        "speed_chunks=1",
    )  # fmt: skip
    found = metrics(unseen)
    return {"backend": kind, "steps": steps, "cpu_minutes": spent / 60, **{name: found[name] for name in SHOWN}}


def cells(row: Mapping[str, Any]) -> list[str]:
    """Write one row of the table."""
    steps = " + ".join(str(count) for count in row["steps"].values())
    return [row["backend"], steps, f"{row['cpu_minutes']:.1f}", *(number(row[name]) for name in SHOWN)]


def main(arguments: list[str]) -> int:
    """Train and measure both, and print the table."""
    asked = given(arguments)
    if not {"data", "unseen"} <= asked.keys():
        print(__doc__)
        return 2
    out, seconds = Path(asked.pop("out", "runs/backends")), 60 * float(asked.pop("minutes", "15"))
    usual = {"seed": "100", "episodes": "4"}
    options = {name: asked.pop(name, usual.get(name, "")) for name in ("data", "unseen", "seed", "episodes")}
    batches = {kind: [f"training.batch={asked.pop(key)}"] for kind in BACKENDS if (key := f"batch.{kind}") in asked}
    common = [f"{key}={value}" for key, value in asked.items()]
    table = []
    for kind in BACKENDS:
        table.append(measure(kind, out, seconds, options, [*common, *batches.get(kind, [])]))
        (out / "table.json").write_text(json.dumps(table, indent=2) + "\n")
    show(HEADINGS, [cells(row) for row in table])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
