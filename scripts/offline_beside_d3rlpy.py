"""Offline algorithms of worldrl beside those of d3rlpy: equal data, equal sizes, equal updates, the same test episodes.

``python scripts/offline_beside_d3rlpy.py seeds=5 out=offline-beside-d3rlpy.json``

d3rlpy is looked for in the environment and never fetched. It pins another gymnasium than worldrl, which nothing here uses, so
``pip install --no-deps --target FOLDER d3rlpy gym gym-notices structlog colorama dataclasses-json marshmallow
typing-inspect mypy-extensions scikit-learn joblib threadpoolctl narwhals`` and ``PYTHONPATH=FOLDER`` bring it.

The data are those of ``offline_table.py``: 10,000 rows of a noisy controller of Gymnasium's Pendulum, new for every seed. Both code
bases train one after the other in this process, which is pinned to one thread, and play the same 100 episodes. Printed are the
mean returns, their difference with Student's 95 % interval over seeds, and the processor's time of an update.

What stays unequal: initial weights and batches; d3rlpy adds V's loss to Q's and takes one optimizer step on both, begins CQL's and SAC's
updates with the critics, and values CQL's next state at the policy's mean. Further: seed=0 (the first), updates=4000, algorithms=bc,iql.
"""

import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from worldrl.core.rng import initial_weights, stream
from worldrl.core.statistics.intervals import mean_interval
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.provenance import code_version, package_versions
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Agent, Facts
from worldrl.methods.offline.bc import Bc, BcConfig
from worldrl.methods.offline.cql import Cql, CqlConfig
from worldrl.methods.offline.iql import Iql, IqlConfig
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.methods.offline.td3_bc import Td3Bc, Td3BcConfig
from worldrl.reproductions.neubay.pendulum import REWARD_SCALE, STEPS, play, record

HIDDEN, BATCH, DISCOUNT, POLYAK, RATE = (64, 64), 128, 0.97, 0.02, 1e-3
"""Of everything that has such a setting, in both code bases: those of ``offline_table.py``."""
SOFTNESS = 0.5  # IQL's β, of `offline_table.py` too
ROWS, TESTS = 10_000, 100
CRITICS: dict[str, Any] = {"hidden": HIDDEN, "discount": DISCOUNT, "polyak": POLYAK}
SOFT: dict[str, Any] = {f"{part}_rate": RATE for part in ("actor", "critic", "temperature")} | {"actor_cosine": False}
OURS: Mapping[str, tuple[type[Any], Any]] = {
    "bc": (Bc, BcConfig(HIDDEN, RATE)),
    "td3_bc": (Td3Bc, Td3BcConfig(**CRITICS, learning_rate=RATE)),
    "iql": (Iql, IqlConfig(**CRITICS, learning_rate=RATE, temperature=SOFTNESS, actor_cosine=False)),
    "cql": (Cql, CqlConfig(**CRITICS, **SOFT)),
    "sac": (Sac, SacConfig(**CRITICS, **SOFT, largest_temperature=None)),
}


@dataclass(frozen=True)
class Run:
    """One training of one code base."""

    ret: float  # mean return of the test episodes, in the environment's rewards
    update_ms: float  # processor's time of an update


# --- what both learn from and are tested on -------------------------------------------------------------------------


def recorded(seed: int) -> tuple[Transitions, Tensor]:
    """Return the rows of a seed in the environment's rewards, and the returns of their episodes."""
    rows, _ = record(ROWS // STEPS, generator=stream(seed, "offline-table", "data"))
    rows = replace(rows, reward=rows.reward / REWARD_SCALE)
    return rows, rows.reward.reshape(-1, STEPS).sum(dim=1)


def tested(act: Callable[[Tensor], Tensor], seed: int) -> float:
    """Play the test episodes of a seed; return their mean return."""
    return float(play(act, TESTS, generator=stream(seed, "beside-d3rlpy", "tests")).mean())


# --- the two code bases ---------------------------------------------------------------------------------------------


def train_ours(name: str, rows: Transitions, facts: Facts, seed: int, updates: int) -> Run:
    """Train and test one of our agents."""
    made, config = OURS[name]
    with initial_weights(seed, "beside-d3rlpy", name):
        agent: Agent = made(config, facts)
    draws, began = stream(seed, "beside-d3rlpy", "batches"), time.process_time()
    for _ in range(updates):
        agent.update(rows.select(torch.randint(len(rows), (BATCH,), generator=draws)), generator=draws)
    spent = time.process_time() - began
    return Run(tested(lambda obs: agent.act(obs, generator=None), seed), 1000 * spent / updates)


def train_theirs(name: str, rows: Transitions, facts: Facts, seed: int, updates: int) -> Run:
    """Train and test one of d3rlpy's agents."""
    import d3rlpy  # pyright: ignore[reportMissingImports]
    from d3rlpy.logging import NoopAdapterFactory  # pyright: ignore[reportMissingImports]

    d3rlpy.seed(seed)
    reward = facts.reward_scale * rows.reward if name == "iql" else rows.reward
    data = d3rlpy.dataset.MDPDataset(
        rows.obs.numpy(), rows.action.numpy(), reward.numpy()[:, None], rows.terminated.float().numpy(),
        timeouts=rows.truncated.float().numpy(),
    )  # fmt: skip
    agent, began = peer_config(name).create(device="cpu:0"), time.process_time()
    agent.fit(
        data, n_steps=updates, n_steps_per_epoch=updates, logger_adapter=NoopAdapterFactory(), show_progress=False
    )
    spent = time.process_time() - began
    return Run(tested(lambda obs: torch.from_numpy(agent.predict(obs.numpy())), seed), 1000 * spent / updates)


def peer_config(name: str) -> Any:
    """Return d3rlpy's configuration of the same size."""
    from d3rlpy import algos, models, preprocessing  # pyright: ignore[reportMissingImports]

    net = models.encoders.VectorEncoderFactory(list(HIDDEN))
    scaler = {"observation_scaler": preprocessing.StandardObservationScaler()}
    if name == "bc":
        return algos.BCConfig(batch_size=BATCH, learning_rate=RATE, encoder_factory=net, **scaler)
    common: dict[str, Any] = {
        "batch_size": BATCH, "gamma": DISCOUNT, "tau": POLYAK, "actor_learning_rate": RATE, "critic_learning_rate": RATE,
        "actor_encoder_factory": net, "critic_encoder_factory": net,
    }  # fmt: skip
    if name == "td3_bc":
        return algos.TD3PlusBCConfig(**common, **scaler)
    if name == "iql":
        return algos.IQLConfig(**common, value_encoder_factory=net, weight_temp=SOFTNESS)
    if name == "cql":  # a fixed weight of 5, as ours
        return algos.CQLConfig(**common, temp_learning_rate=RATE, alpha_learning_rate=0.0)
    return algos.SACConfig(**common, temp_learning_rate=RATE)


# --- the table ------------------------------------------------------------------------------------------------------


def beside(pairs: Sequence[tuple[Run, Run]], data: Sequence[float]) -> dict[str, Any]:
    """Sum up one algorithm over its seeds; a pair is our run and the peer's."""
    ours, theirs = ([pair[which].ret for pair in pairs] for which in (0, 1))
    spent = [statistics.fmean(pair[which].update_ms for pair in pairs) for which in (0, 1)]
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    return {
        "ours": ours,
        "theirs": theirs,
        "data": list(data),
        "difference": mean_interval(differences) if len(pairs) > 1 else None,
        "update_ms": spent,
        "factor": spent[1] / spent[0],
    }


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the table."""
    table = Table(title="worldrl beside d3rlpy, offline, Pendulum-v1")
    for heading in ("algorithm", "data", "worldrl", "d3rlpy", "difference, 95 % over seeds", "ms an update", "factor"):
        table.add_column(heading, overflow="fold")
    for name, row in found.items():
        means = [f"{statistics.fmean(row[key]):.0f}" for key in ("data", "ours", "theirs")]
        gap = row["difference"]
        difference = "one seed" if gap is None else f"{gap['mean']:+.0f} [{gap['lo']:.0f}, {gap['hi']:.0f}]"
        spent = " and ".join(f"{ms:.2f}" for ms in row["update_ms"])
        table.add_row(name, *means, difference, spent, f"{row['factor']:.2f}")
    Console().print(table)


def main(arguments: Sequence[str]) -> int:
    """Train what is asked for, seed by seed in turns; print and write the table."""
    given = {"seed": "0", "seeds": "5", "updates": "4000", "algorithms": ",".join(OURS), "out": ""}
    unknown = [word for word in arguments if word.partition("=")[0] not in given or "=" not in word]
    given |= dict(word.split("=", 1) for word in arguments if word not in unknown)
    names = given["algorithms"].split(",")
    if unknown or not set(names) <= set(OURS):
        print(f"{__doc__}\nAlgorithms: {', '.join(OURS)}\nUnknown: {unknown or sorted(set(names) - set(OURS))}")
        return 2
    if find_spec("d3rlpy") is None:
        print(f"{__doc__}\nThere is no d3rlpy in this environment.")
        return 2
    torch.set_num_threads(1)
    import structlog  # pyright: ignore[reportMissingImports]

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # no progress of the peer
    first, updates = int(given["seed"]), int(given["updates"])
    found = measure(names, range(first, first + int(given["seeds"])), updates)
    if given["out"]:
        result = {"updates": updates, "first_seed": first, "algorithms": found, "code": code_version()}
        result |= {"packages": package_versions(), "d3rlpy": version("d3rlpy")}
        write_file(Path(given["out"]), (json.dumps(result, indent=2) + "\n").encode())
    return 0


def measure(names: Sequence[str], seeds: Sequence[int], updates: int) -> dict[str, Any]:
    """Train both code bases seed by seed, in turns; print the table after each."""
    runs: dict[str, list[tuple[Run, Run]]] = {name: [] for name in names}
    data: list[float] = []
    found: dict[str, Any] = {}
    for seed in seeds:
        rows, returns = recorded(seed)
        data.append(float(returns.mean()))
        facts = Facts.of(rows, returns.numpy(), updates=updates)
        for name in names:
            one, other = (train(name, rows, facts, seed, updates) for train in (train_ours, train_theirs))
            runs[name].append((one, other))
        found = {name: beside(pairs, data) for name, pairs in runs.items()}
        show(found)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
