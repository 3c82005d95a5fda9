"""What each mechanism is worth: its effect on a world model's drift, and on real success after practice in it.

python scripts/ablations.py scale=quick supervised=runs/x/stages/02-policy/policy unseen=runs/unseen/dataset

Further: rows=full,no_anchor (all of the scale), seed=100, out=runs/ablations, and any setting of train-vla for all rows.

Every row begins with the same supervised policy, initial states and seed, and differs from the full row in one thing.

- ``scale=quick``: one round of practice. Rows of the world model learn their dynamics from nothing, with the bundled codec and
  one recording for all; rows of the loop practise in the bundled world model and are held against ``loop_full``. Full means
  everything on but the styles, which a row of its own adds: the bundled codec knows one look.
- ``scale=full``: one train-vla run per row, its world model from scratch, codec and all; ``loop`` rows from the bundled one.

A stopped script goes on with the same command, inside the row it was in. Each row tells what it cost. Writes
``out/table-SCALE.json`` and prints a Markdown table.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured_rows import cpu_seconds, given, metrics, number, rate, run, show

QUICK, FULL = "quick", "full"
BUNDLED = "bundled"
SHOWN = (32, 64, 128)
LOOKS = "styles=[dim,bright,warm,dark_table,checker,speckle,shifted_camera,cluttered]"
"""Looks that are only ever measured in; training draws ``sampled`` ones."""

WORLD = (
    "start=scratch", "rounds=1", "scratch.expert_episodes=200", "scratch.training.codec_steps=1500",
    "scratch.training.steps=3000", "scratch.training.outcome_steps=400",
)  # fmt: skip
LOOP = ("start=bundled",)
PRACTICE = (
    "rounds=1", "practice.policy_episodes=20", "practice.expert_episodes=20", "practice.dream_episodes=20",
    "training.steps=60", "training.outcome_steps=60", "improvement.self_training.rollouts=1024", "improvement.p_keyframe=0.3",
    "improvement.self_training.cloning.steps=600", "evaluation.episodes_per_task=170", "evaluation.verify=32",
)  # fmt: skip
DYNAMICS = ("start=scratch", "codec=bundled", "gates=warn")
LEARNING = (
    "codec_steps=0", "steps=1200", "batch=32", "learning_rate=6e-4", "warmup=100", "ema_decay=0.99", "bootstrap=0.3",
    "outcome_steps=300",
)  # fmt: skip

RECORDINGS = {
    "common": ("expert_episodes=0", "policy_episodes=40", "wander_episodes=10", "temperature=1.0"),
    "near": ("expert_episodes=0", "blind_episodes=40"),
    "plain": ("expert_episodes=40",),
}
USUAL = ("common", "near")
STYLED = (*USUAL, "common-styled", "near-styled")


@dataclass(frozen=True)
class Row:
    """What one row does otherwise than the full one.

    Attributes:
        name: short.
        model: settings of the world model.
        training: settings of its training.
        loop: settings of train-vla.
        data: recordings that the world model of the quick scale learns from.
        full: settings of train-vla at the full scale, where they are others than ``loop``.
        base: settings of its family at the full scale; None where the scale has no such row.
    """

    name: str
    model: tuple[str, ...] = ()
    training: tuple[str, ...] = ()
    loop: tuple[str, ...] = ()
    data: tuple[str, ...] = USUAL
    full: tuple[str, ...] | None = None
    base: tuple[str, ...] | None = WORLD

    @property
    def world(self) -> str:
        """Name of the row whose world model it practises in, at the quick scale."""
        changed = self.model or self.training or self.data != USUAL
        return self.name if changed or self.name == "full" else BUNDLED


ROWS = (
    Row("full"),
    Row("no_anchor", model=("dynamics.reference=false",)),
    Row("no_memory_noise", model=("dynamics.memory_noise=0",)),
    Row("no_bootstrapping", training=("bootstrap=0",)),
    Row("no_success_loss", model=("success.loss_weight=0",)),
    # As many episodes, none of them the blind expert's.
    Row(
        "no_near_success",
        loop=("practice.expert_episodes=0", "practice.policy_episodes=40"),
        data=("common", "plain"),
        full=("scratch.expert_episodes=0", "practice.policy_episodes=260"),
    ),
    Row("styles", data=STYLED, base=None),
    Row("loop_full", base=LOOP),
    Row("no_keyframes", loop=("improvement.p_keyframe=0",), base=None),
    # The full scale's family takes two rounds, each of which refines the world model.
    Row(
        "no_coevolution",
        loop=("training.steps=0", "training.outcome_steps=0"),
        full=("rounds=1", "improvement.self_training.cycles=2"),
        base=LOOP,
    ),
    Row("no_masks", loop=("improvement.stop_at_success=false",), base=LOOP),
    Row("no_static_clips", training=("static_share=0",)),
    Row("no_first_chunks", training=("first_chunk_share=0",)),
    Row("no_action_modulation", model=("dynamics.action_modulation=false",)),
    Row("no_action_tokens", model=("dynamics.action_tokens=false",)),
    Row("no_pose_map", model=("dynamics.pose_map=false",)),
    Row("no_debounce", model=("outcome.debounce=1",)),
    Row("loop_keyframes", loop=("improvement.p_keyframe=0.3",), base=LOOP),
    Row("loop_from_supervised", loop=("improve_from=supervised",), base=LOOP),
    Row("loop_groups_of_4", loop=("improvement.self_training.group_size=4",), base=LOOP),
    Row("loop_opinions", loop=("improvement.self_training.opinions=2",), base=LOOP),
    Row("loop_strict", loop=("target_precision=0.93",), base=LOOP),
)


def rows_of(scale: str) -> tuple[Row, ...]:
    """Rows that a scale has: the quick one leaves out what varies the loop further."""
    if scale == FULL:
        return tuple(row for row in ROWS if row.base is not None)
    return tuple(row for row in ROWS if not row.name.startswith("loop_") or row.name == "loop_full")


# --- the quick scale ------------------------------------------------------------------------------------------------


def recording(out: Path, name: str, options: dict[str, str]) -> Path:
    """Return a recording that all rows share, made where it is missing."""
    folder = out / "recordings" / name
    base, _, styled = name.partition("-")
    if styled:
        source = recording(out, base, options)
        run(folder, "restyle", f"data={source}", f"seed={options['seed']}")
        return folder / "dataset"
    policy = (f"policy={options['supervised']}",) if base == "common" else ()
    run(folder, "collect", "kind=object", f"seed={options['seed']}", *RECORDINGS[base], *policy)
    return folder / "dataset"


def unseen_looks(out: Path, options: dict[str, str]) -> Path:
    """Return the unseen episodes in looks that no training has."""
    folder = out / "recordings" / "unseen-looks"
    run(folder, "restyle", f"data={options['unseen']}", f"seed={options['seed']}", LOOKS)
    return folder / "dataset"


def quick_world(row: Row, out: Path, options: dict[str, str]) -> str:
    """Return the world model that a row practises in, trained where it is missing."""
    if row.world == BUNDLED:
        return BUNDLED
    folder = out / QUICK / f"{row.world}-world"
    data = ",".join(str(recording(out, name, options)) for name in row.data)
    run(
        folder, "train-world-model", f"data=[{data}]", f"seed={options['seed']}", *DYNAMICS,
        *(f"model.{change}" for change in row.model), *(f"training.{value}" for value in (*LEARNING, *row.training)),
    )  # fmt: skip
    return str(folder / "world_model")


def quick(row: Row, out: Path, options: dict[str, str], common: list[str]) -> dict[str, Any]:
    """Measure one row of the quick scale."""
    world = quick_world(row, out, options)
    loop = out / QUICK / row.name
    run(
        loop, "train-vla", f"seed={options['seed']}", f"supervised={options['supervised']}", f"start={world}", "gates=warn",
        "evaluation.seed=3", *PRACTICE, *(f"training.{change}" for change in row.training), *row.loop, *common,
    )  # fmt: skip
    plain, looks = (out / QUICK / f"{row.world}-{what}" for what in ("drift", "looks"))
    run(plain, *drift_command(world, options["unseen"], SHOWN))
    run(looks, *drift_command(world, str(unseen_looks(out, options)), SHOWN[:1]))
    trained = [] if world == BUNDLED else [Path(world).parent]
    cost = cpu_seconds(*trained, loop, plain, looks)
    return {**found(row, metrics(loop), metrics(plain), cost), "looks": metrics(looks)["outcome_alignment"]}


def drift_command(world: str, data: str, horizons: tuple[int, ...]) -> tuple[str, ...]:
    """Measure a world model alone."""
    return (
        "evaluate-world-model", f"world_model={world}", f"data=[{data}]", f"horizons=[{','.join(map(str, horizons))}]",
        "probe.steps=0", "speed_rows=[16]", "speed_chunks=1",
    )  # fmt: skip


# --- the full scale -------------------------------------------------------------------------------------------------


def full(row: Row, out: Path, options: dict[str, str], common: list[str]) -> dict[str, Any]:
    """Measure one row of the full scale."""
    loop, drift = out / row.name, out / f"{row.name}-world"
    change = (
        *(f"world_model.{value}" for value in row.model),
        *(f"scratch.training.{value}" for value in row.training),
        *(row.loop if row.full is None else row.full),
    )
    run(
        loop, "train-vla", f"seed={options['seed']}", f"supervised={options['supervised']}", "gates=warn",
        "evaluation.seed=3", *(row.base or ()), *change, *common,
    )  # fmt: skip
    world = str(loop / metrics(loop)["world_model"])
    run(drift, *drift_command(world, options["unseen"], SHOWN))
    return found(row, metrics(loop), metrics(drift), cpu_seconds(loop, drift))


# --- the table ------------------------------------------------------------------------------------------------------


def found(row: Row, loop: dict[str, Any], drift: dict[str, Any], cost: float) -> dict[str, Any]:
    """Collect a row's numbers."""
    return {
        "row": row.name,
        "gain": loop["comparison"]["paired"],
        "confirmed": loop["verify"]["precision"],
        "psnr": {h: drift[f"closed_loop.psnr@{h}"] for h in SHOWN},
        **{name: drift[name] for name in ("action_swap_ratio", "outcome_alignment", "false_success_rate")},
        "cpu_minutes": cost / 60,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """Write one row of the table."""
    gain = row["gain"]
    points = f"{100 * gain['diff']:+.1f} [{100 * gain['lo']:+.1f}, {100 * gain['hi']:+.1f}]"
    rates = (row.get(name) for name in ("confirmed", "outcome_alignment", "false_success_rate", "looks"))
    errors = (number(value) for value in row["psnr"].values())
    return [row["row"], points, *errors, number(row["action_swap_ratio"]), *map(rate, rates), f"{row['cpu_minutes']:.0f}"]  # fmt: skip


HEADINGS = (
    "row", "gain, points", *(f"PSNR@{h}" for h in SHOWN), "action swap", "confirmed %", "outcomes told right %",
    "false successes %", "told right in other looks %", "CPU minutes",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the rows that are asked for and print the table."""
    asked = given(arguments)
    if not {"supervised", "unseen"} <= asked.keys() or asked.get("scale", FULL) not in (QUICK, FULL):
        print(__doc__)
        return 2
    scale, out = asked.pop("scale", FULL), Path(asked.pop("out", "runs/ablations"))
    options = {"seed": asked.pop("seed", "100"), **{name: asked.pop(name) for name in ("supervised", "unseen")}}
    known = {row.name: row for row in rows_of(scale)}
    names = asked.pop("rows", ",".join(known)).split(",")
    if unknown := sorted(set(names) - known.keys()):
        print(f"unknown rows {unknown}; at scale={scale} there are {list(known)}", file=sys.stderr)
        return 2
    common, table = [f"{key}={value}" for key, value in asked.items()], []
    for name in names:
        table.append((quick if scale == QUICK else full)(known[name], out, options, common))
        (out / f"table-{scale}.json").write_text(json.dumps(table, indent=2) + "\n")
    show(HEADINGS, [cells(row) for row in table])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
