"""What each mechanism is worth: one train-vla run per row, its world model's drift, and its effect on real success.

python scripts/ablations.py supervised=runs/x/stages/02-policy/policy unseen=runs/unseen/dataset

Further: rows=full,no_anchor (all), seed=100, out=runs/ablations, and any setting of train-vla for all rows.

Every row begins with the same supervised policy, initial states and seed. ``world`` rows train a world model from scratch
(shorter than a real run does), ``loop`` rows begin with the bundled one. A stopped script goes on with the same command.
Writes ``out/table.json`` and prints a Markdown table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORLD = (
    "start=scratch", "rounds=1", "scratch.expert_episodes=200", "scratch.training.codec_steps=1500",
    "scratch.training.steps=3000", "scratch.training.outcome_steps=400",
)  # fmt: skip
LOOP = ("start=bundled",)


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        name: short.
        base: settings of its family.
        change: what is different from the family's full row.
    """

    name: str
    base: tuple[str, ...]
    change: tuple[str, ...] = ()


ROWS = (
    Row("full", WORLD),
    Row("no_anchor", WORLD, ("world_model.dynamics.reference=false",)),
    Row("no_memory_noise", WORLD, ("world_model.dynamics.memory_noise=0",)),
    Row("no_bootstrapping", WORLD, ("scratch.training.bootstrap=0",)),
    Row("no_success_loss", WORLD, ("world_model.success.loss_weight=0",)),
    Row("no_static_clips", WORLD, ("scratch.training.static_share=0",)),
    Row("no_first_chunks", WORLD, ("scratch.training.first_chunk_share=0",)),
    Row("no_action_modulation", WORLD, ("world_model.dynamics.action_modulation=false",)),
    Row("no_action_tokens", WORLD, ("world_model.dynamics.action_tokens=false",)),
    Row("no_pose_map", WORLD, ("world_model.dynamics.pose_map=false",)),
    # As many episodes, none of them the blind expert's.
    Row("no_near_success", WORLD, ("scratch.expert_episodes=0", "practice.policy_episodes=260")),
    Row("no_debounce", WORLD, ("world_model.outcome.debounce=1",)),
    Row("loop_full", LOOP),
    Row("loop_keyframes", LOOP, ("improvement.p_keyframe=0.3",)),
    Row("loop_no_coevolution", LOOP, ("rounds=1", "improvement.self_training.cycles=2")),
    Row("loop_from_supervised", LOOP, ("improve_from=supervised",)),
    Row("loop_groups_of_4", LOOP, ("improvement.self_training.group_size=4",)),
    Row("loop_no_masks", LOOP, ("improvement.stop_at_success=false",)),
    Row("loop_opinions", LOOP, ("improvement.self_training.opinions=2",)),
    Row("loop_strict", LOOP, ("target_precision=0.93",)),
)


def run(command: str, *overrides: str) -> None:
    """Run a worldrl command; it does nothing where it has finished."""
    subprocess.run([sys.executable, "-m", "worldrl", command, *overrides], check=True)


def measure(row: Row, options: dict[str, str], common: list[str]) -> dict[str, Any]:
    """Run one row; return its numbers."""
    out = Path(options["out"])
    run(
        "train-vla", f"run_dir={out / row.name}", f"seed={options['seed']}", f"supervised={options['supervised']}",
        "gates=warn", "evaluation.seed=3", *row.base, *row.change, *common,
    )  # fmt: skip
    metrics = json.loads((out / row.name / "result.json").read_text())["metrics"]
    world = out / f"{row.name}-world"
    run(
        "evaluate-world-model", f"run_dir={world}", f"world_model={out / row.name / metrics['world_model']}",
        f"data=[{options['unseen']}]", "horizons=[32,64,128]", "probe.steps=0", "speed_rows=[16]",
    )  # fmt: skip
    drift = json.loads((world / "result.json").read_text())["metrics"]
    return {
        "row": row.name,
        "change": list(row.change),
        "gain": metrics["comparison"]["paired"],
        "confirmed": metrics["verify"]["precision"],
        "psnr": {h: drift[f"closed_loop.psnr@{h}"] for h in (32, 64, 128)},
        "action_swap_ratio": drift["action_swap_ratio"],
        "outcome_alignment": drift["outcome_alignment"],
        "false_success_rate": drift["false_success_rate"],
    }


def cells(found: dict[str, Any]) -> list[str]:
    """Write one row of the table."""

    def rate(value: dict[str, Any] | None) -> str:
        return "–" if value is None else f"{100 * value['rate']:.0f} [{100 * value['lo']:.0f}, {100 * value['hi']:.0f}]"

    def number(value: dict[str, Any]) -> str:
        return f"{value['value']:.1f} [{value['lo']:.1f}, {value['hi']:.1f}]"

    gain = found["gain"]
    points = f"{100 * gain['diff']:+.1f} [{100 * gain['lo']:+.1f}, {100 * gain['hi']:+.1f}]"
    rates = (rate(found[name]) for name in ("confirmed", "outcome_alignment", "false_success_rate"))
    return [
        found["row"],
        points,
        *(number(value) for value in found["psnr"].values()),
        number(found["action_swap_ratio"]),
        *rates,
    ]


HEADINGS = (
    "row", "gain, points", "PSNR@32", "PSNR@64", "PSNR@128", "action swap", "confirmed %", "outcomes told right %", "false successes %",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the rows that are asked for and print the table."""
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if not {"supervised", "unseen"} <= given.keys():
        print(__doc__)
        return 2
    options = {name: given.pop(name, default) for name, default in (("seed", "100"), ("out", "runs/ablations"))}
    options |= {name: given.pop(name) for name in ("supervised", "unseen")}
    asked = given.pop("rows", ",".join(row.name for row in ROWS)).split(",")
    if unknown := sorted(set(asked) - {row.name for row in ROWS}):
        print(f"unknown rows {unknown}; there are {[row.name for row in ROWS]}", file=sys.stderr)
        return 2
    common = [f"{key}={value}" for key, value in given.items()]
    found: list[dict[str, Any]] = []
    for row in (row for row in ROWS if row.name in asked):
        found.append(measure(row, options, common))
        (Path(options["out"]) / "table.json").write_text(json.dumps(found, indent=2) + "\n")
    for line in (list(HEADINGS), ["---"] * len(HEADINGS), *(cells(one) for one in found)):
        print("| " + " | ".join(line) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
