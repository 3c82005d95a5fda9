"""Every algorithm of train-offline on one small dataset, in one table: does it beat the data, and behaviour cloning?

python scripts/offline_table.py out=runs/offline-table seeds=3

The data are of Gymnasium's Pendulum-v1: 10,000 rows of a noisy controller, new for every seed. The rest is the command
``worldrl benchmark-offline`` with sizes that take seconds; those that stand in ``COMMON`` are the same for every algorithm
that has the setting. Further: seed=0 (the first), updates=12000, rows=10000, algorithms=bc,iql (default: all of ``TABLE``),
episodes=20, workers=1. A stopped script continues with the same command; tables and page are in ``out``.

A sanity check, not a benchmark: published sizes are five to ten times as wide and learn for a million updates. For other
data give them to ``worldrl benchmark-offline`` itself.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.cli import main as worldrl
from worldrl.core.rng import stream
from worldrl.data.offline.minari_format import write_minari
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories, VectorEpisode, from_episodes
from worldrl.jobs.offline.benchmark_offline import words_known
from worldrl.reproductions.neubay.pendulum import LARGEST_TORQUE, REWARD_SCALE, STEPS, record

COMMON = (
    "training.steps={updates} training.checkpoint_every={updates} training.batch_size=128 episodes={episodes} "
    "video_episodes=0 agent.hidden=[64,64] agent.discount=0.97 agent.polyak=0.02 agent.learning_rate=1e-3 "
    "agent.actor_rate=1e-3 agent.critic_rate=1e-3 agent.temperature_rate=1e-3 agent.head_rate=1e-3 agent.encoder_rate=1e-4"
)
SOFTER = "agent.temperature=0.5"
"""β, published as 3 for a million updates: after some thousand, advantages are mostly the critics' errors, which 3 follows (d3rlpy's IQL too)."""
FIVE = "agent.critics=5"
IMAGINING = (
    "imagining.rollouts=500 imagining.refresh_every=250 ensemble.members=5 ensemble.elites=3 ensemble.width=64 "
    "ensemble_training.max_epochs=30"
)
RECURRENT = (
    "recurrent.rows=512 recurrent.kept=200000 recurrent.rollouts=25 agent.memory.width=64 agent.memory.states=32 "
    "ensemble.members=16 ensemble.elites=12 ensemble.width=64 ensemble_training.max_epochs=30 "
    f"{FIVE} training.steps={{quarter}}"
)
RAMBO = "agent.clone_steps={quarter} agent.world_every=500 agent.world_steps=100"
TABLE: Mapping[str, str] = {
    **dict.fromkeys(("bc", "td3_bc", "cql", "sac", "recoil"), ""),
    **dict.fromkeys(("iql", "f_dvl"), SOFTER),
    **dict.fromkeys(("sac_n", "edac"), FIVE),
    "ro2o": f"{FIVE} agent.draws=5",
    **dict.fromkeys(("mbpo", "mopo", "combo"), IMAGINING),
    "ravl": f"{IMAGINING} {FIVE}",
    "rambo": f"{IMAGINING} {RAMBO}",
    "mobile": f"{IMAGINING} agent.floor=null",  # its floor of 0 is for rewards that are not negative
    "neubay": RECURRENT,
}
"""Algorithm to settings of its own. {quarter} is a quarter of the updates: NEUBAY's cost ten times an ordinary one's."""


def make_data(store: Path, seed: int, rows: int) -> None:
    """Write the dataset of a seed, unless it is there."""
    name = f"worldrl/pendulum/noisy-v{seed}"
    if (store / name).exists():
        return
    drawn, _ = record(rows // STEPS, generator=stream(seed, "offline-table", "data"))
    info = DatasetInfo(
        "a noisy controller", (-LARGEST_TORQUE,), (LARGEST_TORQUE,), dataset_id=name, env_id="Pendulum-v1"
    )
    write_minari(
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


def words(chosen: Sequence[str], given: Mapping[str, str]) -> list[str]:
    """Return the command line of the grid."""
    quarter = str(int(given["updates"]) // 4)
    own = {name: TABLE[name].format(quarter=quarter) for name in chosen}
    return [
        "benchmark-offline", f"run_dir={given['out']}", f"data=['{given['out']}/datasets/worldrl/pendulum/noisy-v{{seed}}']",
        f"algorithms=[{','.join(chosen)}]", *(f"{key}={given[key]}" for key in ("seed", "seeds", "workers")),
        f"common={common(chosen, given)}", *(f"own.{name}={text}" for name, text in own.items() if text),
    ]  # fmt: skip


def common(chosen: Sequence[str], given: Mapping[str, str]) -> str:
    """Return those of ``COMMON`` that one of the chosen algorithms has; the grid refuses a setting that nobody has."""
    known = set[str]().union(*(words_known(name, {}) for name in chosen))
    return " ".join(word for word in COMMON.format(**given).split() if word.partition("=")[0] in known)


def main(arguments: Sequence[str]) -> int:
    """Make the data, run what is missing, print the tables."""
    given = {"out": "runs/offline-table", "seed": "0", "seeds": "3", "updates": "12000", "rows": "10000",
             "episodes": "20", "algorithms": "", "workers": "1"}  # fmt: skip
    unknown = [word for word in arguments if word.partition("=")[0] not in given]
    given |= dict(word.split("=", 1) for word in arguments if "=" in word)
    chosen = given["algorithms"].split(",") if given["algorithms"] else list(TABLE)
    if unknown or not set(chosen) <= set(TABLE):
        print(f"{__doc__}\nAlgorithms: {'; '.join(TABLE)}\nUnknown: {unknown or sorted(set(chosen) - set(TABLE))}")
        return 2
    for seed in range(int(given["seed"]), int(given["seed"]) + int(given["seeds"])):
        make_data(Path(given["out"]) / "datasets", seed, int(given["rows"]))
    code = worldrl(words(chosen, given))
    results = Path(given["out"]) / "results.md"
    if results.exists():
        print(results.read_text())
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
