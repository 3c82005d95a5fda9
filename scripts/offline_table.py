"""Every algorithm of train-offline on one small dataset, in one table: does it beat the data, and behaviour cloning?

python scripts/offline_table.py out=runs/offline-table seeds=3

The data are of Gymnasium's Pendulum-v1: 10,000 rows of a noisy controller, new for every seed. Each run is the command
``worldrl train-offline`` with sizes that take seconds; those that stand in ``COMMON`` are the same for every algorithm that
has the setting. Further: seed=0 (the first), updates=4000, rows=10000, algorithms=bc,iql (default: all of ``TABLE``),
episodes=20. A stopped script goes on with the same command. Writes ``out/table.json`` and prints a Markdown table.

A sanity check, not a benchmark: published sizes are five to ten times as wide and learn for a million updates.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.cli import INTERRUPTED
from worldrl.cli import main as worldrl
from worldrl.core.device import set_threads
from worldrl.core.rng import stream
from worldrl.core.stats import mean_interval
from worldrl.data.offline.minari_format import write_minari
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories, VectorEpisode, from_episodes
from worldrl.jobs.reproductions.pendulum import LARGEST_TORQUE, REWARD_SCALE, STEPS, record
from worldrl.jobs.train_offline import offline_agent

COMMON: Mapping[str, Any] = {
    "hidden": "[64,64]", "discount": 0.97, "polyak": 0.02, "learning_rate": 1e-3, "actor_rate": 1e-3,
    "critic_rate": 1e-3, "temperature_rate": 1e-3, "head_rate": 1e-3, "encoder_rate": 1e-4,
}  # fmt: skip
"""Of ``agent.*``, for every algorithm that has it."""
FIVE = "agent.critics=5"
IMAGINING = ("imagining.rollouts=500", "imagining.refresh_every=250", "ensemble.members=5", "ensemble.elites=3",
             "ensemble.width=64", "ensemble_training.max_epochs=30")  # fmt: skip
RECURRENT = ("recurrent.rows=512", "recurrent.kept=200000", "recurrent.rollouts=25", "agent.memory.width=64",
             "agent.memory.states=32", "ensemble.members=16", "ensemble.elites=12", "ensemble.width=64",
             "ensemble_training.max_epochs=30", FIVE, "training.steps={quarter}")  # fmt: skip
RAMBO = ("agent.clone_steps={quarter}", "agent.world_every=500", "agent.world_steps=100")
TABLE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("bc", "td3_bc", "iql", "cql", "sac", "f_dvl", "recoil"), ()),
    **dict.fromkeys(("sac_n", "edac"), (FIVE,)),
    "ro2o": (FIVE, "agent.draws=5"),
    **dict.fromkeys(("mbpo", "mopo", "combo"), IMAGINING),
    "ravl": (*IMAGINING, FIVE),
    "rambo": (*IMAGINING, *RAMBO),
    "mobile": (*IMAGINING, "agent.floor=null"),  # its floor of 0 is for rewards that are not negative
    "neubay": RECURRENT,
}
"""Algorithm to settings of its own. {quarter} is a quarter of the updates: NEUBAY's cost ten times an ordinary one's."""
CLONE = "bc"
HEADINGS = ("algorithm", "return", "less the data's", "less bc's", "promised less earned", "CPU s", "")


# --- data -----------------------------------------------------------------------------------------------------------


def make_data(store: Path, seed: int, rows: int) -> Path:
    """Write the dataset of a seed, unless it is there; return its folder."""
    name = f"worldrl/pendulum/noisy-v{seed}"
    if (store / name).exists():
        return store / name
    drawn, _ = record(rows // STEPS, generator=stream(seed, "offline-table", "data"))
    info = DatasetInfo(
        "a noisy controller", (-LARGEST_TORQUE,), (LARGEST_TORQUE,), dataset_id=name, env_id="Pendulum-v1"
    )
    return write_minari(
        store, recorded(drawn, info), algorithm="noisy controller", author="worldrl", description="Pendulum, clumsy."
    )


def recorded(rows: Any, info: DatasetInfo) -> Trajectories:
    """Lay the rows of whole episodes out as a dataset, in the environment's own units."""
    obs, arrived, action, reward = (
        getattr(rows, name).numpy().reshape(-1, STEPS, *size)
        for name, size in (("obs", (3,)), ("next_obs", (3,)), ("action", (1,)), ("reward", ()))
    )
    whole = np.concatenate([obs, arrived[:, -1:]], axis=1)
    parts = zip(whole, LARGEST_TORQUE * action, reward / REWARD_SCALE, strict=True)
    return from_episodes(info, [VectorEpisode(o, a, r, terminated=False, truncated=True) for o, a, r in parts])


# --- runs -----------------------------------------------------------------------------------------------------------


def overrides(name: str, data: Path, folder: Path, seed: int, given: Mapping[str, str]) -> list[str]:
    """Return the command line of one run."""
    own, updates = TABLE[name], int(given["updates"])
    steps = [] if any(word.startswith("training.steps=") for word in own) else [f"training.steps={updates}"]
    agent = {item.name for item in fields(offline_agent(name).config_class)}
    batch = [] if name == "neubay" else ["training.batch_size=128"]
    return [
        f"data={data}", f"algorithm={name}", f"run_dir={folder}", f"seed={seed}", *batch,
        f"training.checkpoint_every={updates}", f"episodes={given['episodes']}", "watched_episodes=0",
        *(f"agent.{key}={value}" for key, value in COMMON.items() if key in agent),
        *(word.format(quarter=updates // 4) for word in (*steps, *own)),
    ]  # fmt: skip


def measure(name: str, seed: int, data: Path, out: Path, given: Mapping[str, str]) -> dict[str, Any]:
    """Run one algorithm with one seed, or read it where it has finished."""
    folder = out / "runs" / f"{name}-{seed}"
    cost, result = folder.with_suffix(".json"), folder / "result.json"
    if not cost.exists():
        began = time.process_time()
        code = worldrl(["train-offline", *overrides(name, data, folder, seed, given)])
        if code == INTERRUPTED:
            raise SystemExit(code)
        cost.parent.mkdir(parents=True, exist_ok=True)
        cost.write_text(json.dumps({"code": code, "cpu_s": time.process_time() - began}))
    found = {"algorithm": name, "seed": seed, **json.loads(cost.read_text())}
    if found["code"]:
        return found
    metrics = json.loads(result.read_text())["metrics"]
    over = metrics["evaluation"]["over_estimation"]
    return {
        **found,
        "return": metrics["evaluation"]["return"]["mean"],
        "over_episodes": [metrics["evaluation"]["return"][end] for end in ("lo", "hi")],
        "data": metrics["data"]["mean_return"],
        "over_estimation": None if over is None else over["mean"],
    }


# --- table ----------------------------------------------------------------------------------------------------------


def across(values: Sequence[float]) -> str:
    """Write a mean with its 95 % Student interval over seeds; of a single seed, without one."""
    if len(values) < 2:
        return f"{values[0]:.0f}"
    found = mean_interval(values)
    return f"{found['mean']:.0f} [{found['lo']:.0f}, {found['hi']:.0f}]"


def gain(found: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Return less the data's mean return, with its 95 % interval: over seeds, or over the episodes of a single one."""
    if len(found) < 2:
        one = found[0]
        return one["return"] - one["data"], *(end - one["data"] for end in one["over_episodes"])
    over = mean_interval([one["return"] - one["data"] for one in found])
    return over["mean"], over["lo"], over["hi"]


def table_row(name: str, found: Sequence[Mapping[str, Any]], clone: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write one algorithm; ``clone`` are behaviour cloning's runs with the same seeds."""
    cpu = f"{np.mean([one['cpu_s'] for one in found]):.0f}"
    if broken := [str(one["seed"]) for one in found if one["code"]]:
        return [f"`{name}`", "", "", "", "", cpu, f"**stopped with an error**, seed {', '.join(broken)}"]
    mean, lo, hi = gain(found)
    over = [one["over_estimation"] for one in found if one["over_estimation"] is not None]
    beside = {one["seed"]: one["return"] for one in clone if not one["code"]}
    pairs = [one["return"] - beside[one["seed"]] for one in found if one["seed"] in beside]
    lead = "" if name == CLONE or not pairs else across(pairs)
    verdict = "better than the data" if lo > 0 else "**worse than the data**" if hi < 0 else "undecided"
    returns = across([one["return"] for one in found])
    return [f"`{name}`", returns, f"{mean:.0f} [{lo:.0f}, {hi:.0f}]", lead, across(over) if over else "", cpu, verdict]


def main(words: Sequence[str]) -> int:
    """Run what is missing, write ``table.json``, print the table."""
    given = {"out": "runs/offline-table", "seed": "0", "seeds": "3", "updates": "4000", "rows": "10000",
             "episodes": "20", "algorithms": ""}  # fmt: skip
    unknown = [word for word in words if word.partition("=")[0] not in given]
    given |= dict(word.split("=", 1) for word in words if "=" in word)
    chosen = given["algorithms"].split(",") if given["algorithms"] else list(TABLE)
    if unknown or not set(chosen) <= set(TABLE):
        print(f"{__doc__}\nAlgorithms: {'; '.join(TABLE)}\nUnknown: {unknown or sorted(set(chosen) - set(TABLE))}")
        return 2
    set_threads(1)
    out, first = Path(given["out"]), int(given["seed"])
    seeds = range(first, first + int(given["seeds"]))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for seed in seeds:
        data = make_data(out / "datasets", seed, int(given["rows"]))
        for name in chosen:
            found[name].append(measure(name, seed, data, out, given))
    (out / "table.json").write_text(json.dumps({"settings": given, "runs": found}, indent=1))
    rows = [table_row(name, runs, found.get(CLONE, [])) for name, runs in found.items()]
    for cells in (list(HEADINGS), ["---"] * len(HEADINGS), *rows):
        print("| " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
