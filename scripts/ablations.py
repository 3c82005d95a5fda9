"""What each mechanism is worth: its effect on a world model's drift, and on real success after practice.

python scripts/ablations.py scale=quick supervised=runs/x/stages/02-policy/policy unseen=runs/unseen/dataset
python scripts/ablations.py scale=practised supervised=runs/x/stages/02-policy/policy unseen=runs/unseen/dataset
python scripts/ablations.py rows=loop_full,loop_no_masks supervised=runs/x/stages/02-policy/policy

Further: rows=full,no_anchor (all of the scale), seed=100, out=runs/ablations, and any setting of train-vla for its runs. Rows of
the loop alone need no ``unseen``.

Rows of the world model differ from ``full`` in one thing, rows of the loop from ``loop_full``, those of GRPO from ``loop_grpo``;
every row begins with the same supervised policy, initial states and seed. Where both have run, a row's real success after
practice is paired with that row's, state by state.

- Rows of the loop, at all scales: one train-vla run each from the bundled world model.
- Rows of the world model, ``scale=quick``: drift only. Each learns its dynamics from nothing, with the bundled codec and one
  recording for all. Full means everything on but the styles, which a row of its own adds: the bundled codec knows one look.
- ``scale=practised``: the same with more episodes and steps, and then one round of train-vla that begins with that model, so drift
  and real success.
- ``scale=full``: one train-vla run per row, its world model from scratch, codec and all, then that model's drift.

A stopped script goes on with the same command, inside the row it was in. Each row tells what it cost. Writes
``out/table-SCALE.json``, with the rows of earlier calls, and prints all of it as a Markdown table, with a dash for what a row
does not measure.
"""

import json
import sys
from pathlib import Path
from typing import Any

from ablation_rows import (
    DYNAMICS,
    FULL,
    LEARNING,
    PRACTISED,
    QUICK,
    RECORDINGS,
    ROW,
    ROWS,
    SCRATCH,
    STEPS,
    LoopRow,
    Row,
    WorldRow,
    rows_of,
)
from measured_rows import cpu_seconds, earlier, given, lost_db, metrics, number, rate, run, show

from worldrl.evaluation.policy.compare import compare
from worldrl.evaluation.policy.result import EvalResult
from worldrl_envs.style import TEST_STYLES

SHOWN = (32, 64, 128)
DASH = "–"
LOOKS = f"styles=[{','.join(TEST_STYLES)}]"
"""Looks that are only ever measured in; training draws ``sampled`` ones, which cannot be like them."""

OWN = ("supervised", "unseen")  # What this script is given, beside settings of train-vla
AFTER = Path("stages") / "05-after" / "evaluation"  # Where a run of train-vla keeps how its last policy did


# --- world models whose dynamics learn from nothing, with the bundled codec -------------------------------------------


def recording(scale: str, out: Path, name: str, options: dict[str, str]) -> Path:
    """Return a recording that all rows of a scale share, made where it is missing."""
    folder = out / scale / "recordings" / name
    base, _, styled = name.partition("-")
    if styled:
        source = recording(scale, out, base, options)
        run(folder, "restyle", f"data={source}", f"seed={options['seed']}")
        return folder / "dataset"
    policy = (f"policy={options['supervised']}",) if base == "common" else ()
    run(folder, "collect", "kind=object", f"seed={options['seed']}", *RECORDINGS[scale][base], *policy)
    return folder / "dataset"


def unseen_styles(scale: str, out: Path, options: dict[str, str]) -> Path:
    """Return the unseen episodes in looks that no training has."""
    folder = out / scale / "recordings" / "unseen-looks"
    run(folder, "restyle", f"data={options['unseen']}", f"seed={options['seed']}", LOOKS)
    return folder / "dataset"


def learned_world(scale: str, row: WorldRow, out: Path, options: dict[str, str]) -> dict[str, Any]:
    """Learn one world model's dynamics from nothing, and measure how far it carries."""
    folder = out / scale / f"{row.name}-world"
    data = ",".join(str(recording(scale, out, name, options)) for name in row.data)
    run(
        folder, "train-world-model", f"data=[{data}]", f"seed={options['seed']}", *DYNAMICS,
        *(f"model.{change}" for change in row.model),
        *(f"training.{value}" for value in (*LEARNING, *STEPS[scale], *row.training)),
    )  # fmt: skip
    plain, looks = (out / scale / f"{row.name}-{what}" for what in ("drift", "looks"))
    world = folder / "world_model"
    run(plain, *drift_command(world, options["unseen"], SHOWN))
    run(looks, *drift_command(world, str(unseen_styles(scale, out, options)), SHOWN[:1]))
    found = {**drift(plain), "visual_styles": metrics(looks)["outcome_alignment"]}
    return {"row": row.name, **found, "cpu_minutes": cpu_seconds(folder, plain, looks) / 60}


def world_after_collection(row: WorldRow, out: Path, options: dict[str, str], common: list[str]) -> dict[str, Any]:
    """Learn a world model, measure it, and let one round of train-vla practise in it."""
    found = learned_world(PRACTISED, row, out, options)
    loop, world = out / PRACTISED / row.name, out / PRACTISED / f"{row.name}-world" / "world_model"
    training = (f"training.{value}" for value in row.training)
    run(loop, *loop_command(options), f"start={world}", "rounds=1", *training, *row.practice, *common)
    return {**found, **success(metrics(loop)), "cpu_minutes": found["cpu_minutes"] + cpu_seconds(loop) / 60}


def drift_command(world: Path, data: str, horizons: tuple[int, ...]) -> tuple[str, ...]:
    """Measure a world model alone."""
    return (
        "evaluate-world-model", f"world_model={world}", f"data=[{data}]", f"horizons=[{','.join(map(str, horizons))}]",
        "episodes=60", "threads=1", "probe.steps=0", "speed_rows=[16]", "speed_chunks=1",
    )  # fmt: skip


# --- train-vla ------------------------------------------------------------------------------------------------------


def scratch_world(row: WorldRow, out: Path, options: dict[str, str], common: list[str]) -> dict[str, Any]:
    """Run train-vla with a world model of the row's own, and measure that one."""
    loop, plain = out / FULL / row.name, out / FULL / f"{row.name}-drift"
    model = (f"world_model.{value}" for value in row.model)
    training = (f"{stage}training.{value}" for stage in ("scratch.", "") for value in row.training)
    run(loop, *loop_command(options), *SCRATCH, *model, *training, *row.scratch, *common)
    world = loop / metrics(loop)["world_model"]
    run(plain, *drift_command(world, options["unseen"], SHOWN))
    found = {**success(metrics(loop)), **drift(plain)}
    return {"row": row.name, **found, "cpu_minutes": cpu_seconds(loop, plain) / 60}


def bundled_loop(row: LoopRow, out: Path, options: dict[str, str], common: list[str]) -> dict[str, Any]:
    """Run train-vla from the bundled world model."""
    loop = out / row.name
    run(loop, *loop_command(options), "start=bundled", *row.settings, *common)
    return {"row": row.name, **success(metrics(loop)), "cpu_minutes": cpu_seconds(loop) / 60}


def loop_command(options: dict[str, str]) -> tuple[str, ...]:
    """Return what all runs of train-vla share."""
    return (
        "train-vla", f"seed={options['seed']}", f"supervised={options['supervised']}", "gates=warn", "evaluation.seed=3",
        "evaluation.episodes=170",
    )  # fmt: skip


# --- the table ------------------------------------------------------------------------------------------------------


def success(loop: dict[str, Any]) -> dict[str, Any]:
    """Collect what practice brought."""
    return {"gain": loop["comparison"]["paired"], "confirmed": loop["verify"]["precision"]}


def drift(folder: Path) -> dict[str, Any]:
    """Collect how far a world model carries."""
    found, shown = metrics(folder), ("action_swap_ratio", "outcome_alignment", "false_success_rate")
    psnr = {str(h): found[f"closed_loop.psnr@{h}"] for h in SHOWN}
    return {"psnr": psnr, **{name: found[name] for name in shown}}


def paired(row: Row, scale: str, out: Path) -> dict[str, Any]:
    """Compare a row with the one that it differs from, as far as both were measured: decibels, and real successes."""
    other = ROW[row.against] if isinstance(row, LoopRow) else ROW["full"]
    if other is row:
        return {}
    found: dict[str, Any] = {}
    mine, its = (out / scale / f"{one.name}-drift" for one in (row, other))
    if finished(mine, its):
        found["lost"] = lost_db(mine, its, SHOWN[-1], name="ablations")
    mine, its = (out / one.name if isinstance(one, LoopRow) else out / scale / one.name for one in (row, other))
    if finished(mine, its):
        before, after = (EvalResult.load(folder / AFTER) for folder in (its, mine))
        found["difference"] = {"to": other.name, **compare(before, after).metrics()["paired"]}
    return found


def finished(*folders: Path) -> bool:
    """Whether all of these runs have ended."""
    return all((folder / "result.json").exists() for folder in folders)


def measure(row: Row, scale: str, out: Path, options: dict[str, str], common: list[str]) -> dict[str, Any]:
    """Measure one row, or read it where it has finished."""
    if isinstance(row, LoopRow):
        return bundled_loop(row, out, options, common)
    if scale == QUICK:
        return learned_world(scale, row, out, options)
    return (world_after_collection if scale == PRACTISED else scratch_world)(row, out, options, common)


def cells(row: dict[str, Any]) -> list[str]:
    """Write one row of the table."""
    rates = [rate(row.get(name)) for name in ("confirmed", "outcome_alignment", "false_success_rate", "visual_styles")]
    errors = [number(value) for value in row["psnr"].values()] if "psnr" in row else [DASH] * len(SHOWN)
    lost = number(row["lost"], "+.2f") if "lost" in row else DASH
    swap = number(row["action_swap_ratio"]) if "psnr" in row else DASH
    other = row.get("difference")
    versus = DASH if other is None else f"{points(other)} to {other['to']}, {other['n']} states"
    practice = [points(row.get("gain")), versus]
    return [row["row"], *practice, *errors, lost, swap, *rates, f"{row['cpu_minutes']:.0f}"]


def points(gain: dict[str, Any] | None) -> str:
    """Write a paired difference in points with its interval."""
    if gain is None:
        return DASH
    return f"{100 * gain['diff']:+.1f} [{100 * gain['lo']:+.1f}, {100 * gain['hi']:+.1f}]"


HEADINGS = (
    "row", "gain, points", "paired difference after practice, points", *(f"PSNR@{h}" for h in SHOWN), f"dB lost@{SHOWN[-1]}", "action swap", "confirmed %", "outcomes told right %",
    "false successes %", "predicted correctly in other visual styles %", "CPU minutes",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the rows that are asked for and print the table."""
    asked = given(arguments)
    if "supervised" not in asked or asked.get("scale", FULL) not in (QUICK, PRACTISED, FULL):
        print(__doc__)
        return 2
    scale, out = asked.pop("scale", FULL), Path(asked.pop("out", "runs/ablations"))
    known = {row.name: row for row in rows_of(scale)}
    names = asked.pop("rows", ",".join(known)).split(",")
    if unknown := sorted(set(names) - known.keys()):
        print(f"unknown rows {unknown}; at scale={scale} there are {list(known)}", file=sys.stderr)
        return 2
    if "unseen" not in asked and (worlds := [name for name in names if isinstance(known[name], WorldRow)]):
        print(f"rows {worlds} measure a world model; give unseen=FOLDER, which none learns from", file=sys.stderr)
        return 2
    options = {"seed": asked.pop("seed", "100"), **{name: asked.pop(name) for name in OWN if name in asked}}
    common, file = [f"{key}={value}" for key, value in asked.items()], out / f"table-{scale}.json"
    found, table = earlier(file, options | asked), list[dict[str, Any]]()
    if strangers := sorted(found.keys() - ROW.keys()):
        print(
            f"{file}: no rows of this version are {strangers}; they stay at the end, as they were measured",
            file=sys.stderr,
        )
    for name in names:
        found[name] = {**measure(known[name], scale, out, options, common), "options": options | asked}
        table = [{**found[row.name], **paired(row, scale, out)} for row in ROWS if row.name in found]
        table += [found[row] for row in strangers]
        file.write_text(json.dumps(table, indent=2) + "\n")
    show(HEADINGS, [cells(row) for row in table])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
