"""What more devices would make of ``train-vla``: measured costs, a model of each stage, a simulation of its rounds.

    python scripts/scale.py                       the tables of docs/scale.md
    python scripts/scale.py --stages RESULT.json  where the time of one finished train-vla run went, by stage
    python scripts/scale.py --compare RUN.json    the simulation beside a measured run on several nodes

RUN.json holds the fields of ``Rounds`` and ``seconds``, the time that was measured.
"""

import argparse
import heapq
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from worldrl.evaluation.report.tables import markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
RUN = RESULTS / "train-vla-clean-clone-seed-0.json"
DEVICES = (1, 8, 64, 1000)
FRAMES = 32  # Predicted frames of a whole rollout: 64 control steps, one frame for two
CHUNKS = 8
CORES = 2  # Of the machine of the stored run

# Assumed, as nothing of the kind was measured; docs/scale.md lists them too.
CORES_PER_GPU = 16
CLONING_STEP_S = 0.05  # a step of the gpu preset's policy, batch 512
UPDATE_S = 32 * CLONING_STEP_S  # an update of GRPO
CALIBRATION_S = 60.0  # calibration and gates of a round
POLICY_GB = 0.2  # the policy's weights
GRADIENT_GB_PER_S = 100.0  # of an all-reduce between devices
WEIGHTS_GB_PER_S = 10.0  # of new weights on their way to the actors


# -- measured --------------------------------------------------------------------------------------------------------


def stage_seconds(result: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each stage of a finished run, from the run's clock at their ends; together they are its whole time.

    Results without ``stage_wall_s`` (version 0.2 and before) hold no clock until the first practice ends, so these stages
    are one.
    """
    metrics, ends = result["metrics"], list[tuple[str, float]]()
    if "stage_wall_s" in metrics:
        known = dict(metrics["stage_wall_s"])
        return {**known, "report": result["wall_s"] - sum(known.values())}
    for number, part in enumerate(metrics["rounds"], 1):
        for name, summary in part.items():
            before = "demonstrations, policy, before, " if number == 1 and name in ("practice", "collection") else ""
            ends.append((f"{before}round {number}: {name.replace('_', ' ')}", summary["run_wall_s"]))
    ends += [("verify", metrics["verify"]["run_wall_s"]), ("after, report", result["wall_s"])]
    starts = [0.0, *(end for _, end in ends)]
    return {name: end - begin for (name, end), begin in zip(ends, starts, strict=False)}


def gpu_row(model: str, work: str, batch: int) -> dict[str, Any]:
    """One row of the measurements on a GPU."""
    rows = json.loads((RESULTS / "bench-gpu-h200.json").read_text())["results"]
    return next(r for r in rows if (r["model"], r["work"], r["batch"]) == (model, work, batch))


def unit_costs(result: Mapping[str, Any]) -> dict[str, float]:
    """Seconds on the two cores of a stored run: an improvement's rollout with its share of cloning, an episode."""
    seconds = stage_seconds(result)
    improve = sum(value for name, value in seconds.items() if name.endswith("improve"))
    rollouts = sum(128 * len(part["improve"]["history"]) for part in result["metrics"]["rounds"])
    return {
        "imagined rollout, cloning included": improve / rollouts,
        "evaluated episode": seconds["after, report"] / result["metrics"]["after"]["success"]["n"],
    }


# -- stages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """One stage of the main job: ``work`` that devices share, and what they do not."""

    name: str
    work: float  # seconds on one device, or on the cores of one
    least: float = 0.0  # seconds of the smallest piece: more devices do not cut it
    exchange: float = 0.0  # seconds spent on exchange as soon as there are two devices
    scales: bool = True  # whether more devices are used at all
    why: str = ""  # it stops

    def seconds(self, devices: int) -> float:
        """Time on so many devices."""
        if not self.scales or devices == 1:
            return self.work
        return max(self.work / devices, self.least) + self.exchange


def gpu_job() -> list[Stage]:
    """Stages of ``train-vla preset=gpu`` with two rounds: settings of the preset, measured GPU numbers, assumptions."""
    episode = unit_costs(json.loads(RUN.read_text()))["evaluated episode"] * CORES / CORES_PER_GPU
    train, imagined = gpu_row("gpu", "train", 128), gpu_row("gpu", "imagine", 512)
    step, rounds, tasks = train["seconds"], 2, 3
    reduced = 2 * 4 * train["parameters"] / 1e9 / GRADIENT_GB_PER_S
    smallest = CHUNKS * gpu_row("gpu", "imagine", 4)["seconds"]  # four rollouts at once: the device waits for the host
    steps = 100_000 + 10_000 * (rounds - 1)
    rollouts, played = rounds * 16_384, tasks * (50 + 1_000 + (rounds - 1) * 100 + rounds * 200)
    least_episode = episode * CORES_PER_GPU  # one episode on one core
    return [
        Stage("supervised policy", 20_000 * CLONING_STEP_S, scales=False, why="one learner, small batches"),
        Stage("collection in the simulator", played * episode, least_episode, why="an episode is one core's"),
        Stage("world-model training", steps * step, steps * step / 128, steps * reduced, why="gradients are exchanged"),
        Stage("calibration, gates", rounds * CALIBRATION_S, scales=False, why="one process"),
        Stage(
            "imagination",
            rollouts * FRAMES / imagined["frames_per_s"],
            rounds * smallest,
            why="a rollout is a sequence",
        ),
        Stage("cloning of imagined rollouts", rounds * 10_000 * CLONING_STEP_S, scales=False, why="one learner"),
        Stage("evaluation, before and after", 2 * tasks * 500 * episode, least_episode, why="an episode is one core's"),
    ]


# -- simulation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounds:
    """Asynchronous improvement: actors imagine with version k while the learner makes k + 1."""

    updates: int  # of the learner
    batches: int  # of rollouts that an update learns from
    actors: int
    imagine_s: float  # one batch by one actor
    learn_s: float  # one update
    sync_s: float = 0.0  # until actors have a new version
    staleness: int = 0  # versions that a batch may lie behind when it is learned from
    evaluate_every: int = 0  # updates between evaluations; 0: none
    evaluate_s: float = 0.0  # one evaluation by one worker
    evaluators: int = 1


@dataclass(frozen=True)
class Trace:
    """What the simulation saw."""

    seconds: float  # until everything has ended
    learner_busy: float  # share of the time
    actors_busy: float
    largest_lag: int  # versions


def simulate(plan: Rounds) -> Trace:
    """Play the events in order: an actor that is free takes the next batch as soon as a version may be used for it."""
    available, free, ended = [0.0], [0.0] * plan.actors, 0.0
    workers, evaluated, lag = [0.0] * plan.evaluators, 0.0, 0
    for update in range(plan.updates):
        ready = 0.0
        for _ in range(plan.batches):
            begin = max(heapq.heappop(free), available[max(0, update - plan.staleness)])
            version = max(v for v, at in enumerate(available) if at <= begin)
            lag = max(lag, update - version)
            heapq.heappush(free, begin + plan.imagine_s)
            ready = max(ready, begin + plan.imagine_s)
        ended = max(ended, ready) + plan.learn_s
        available.append(ended + plan.sync_s)
        if plan.evaluate_every and (update + 1) % plan.evaluate_every == 0:
            begin = max(heapq.heappop(workers), ended)
            heapq.heappush(workers, begin + plan.evaluate_s)
            evaluated = max(evaluated, begin + plan.evaluate_s)
    whole = max(ended, evaluated)
    imagining = plan.updates * plan.batches * plan.imagine_s / plan.actors
    return Trace(whole, plan.updates * plan.learn_s / whole, imagining / whole, lag)


def compare(measured: Mapping[str, Any]) -> dict[str, float]:
    """The simulation beside a measured run: seconds of both, and their ratio."""
    names = {item.name for item in fields(Rounds)}
    found = simulate(Rounds(**{name: value for name, value in measured.items() if name in names})).seconds
    return {"simulated": found, "measured": measured["seconds"], "ratio": found / measured["seconds"]}


# -- tables ----------------------------------------------------------------------------------------------------------


def short(seconds: float) -> str:
    """Seconds for people."""
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def stage_table(result: Mapping[str, Any]) -> str:
    """Where the time of a run went."""
    found = stage_seconds(result)
    rows = [(name, f"{s:.0f}", f"{s / result['wall_s']:.0%}") for name, s in found.items()]
    return markdown(("stage", "seconds", "share"), rows)


def job_table() -> str:
    """The gpu preset's stages over devices."""
    job = gpu_job()
    rows = [(s.name, *(short(s.seconds(n)) for n in DEVICES), s.why) for s in job]
    whole = [sum(s.seconds(n) for s in job) for n in DEVICES]
    rows += [
        ("**whole job**", *map(short, whole), ""),
        ("times as fast", *(f"{whole[0] / seconds:.1f}" for seconds in whole), ""),
    ]
    return markdown(("stage", *(f"{n:,} GPU{'s' * (n > 1)}" for n in DEVICES), "it stops because"), rows)


def rounds_table() -> str:
    """Asynchronous GRPO over actors and staleness: imagination measured, the update assumed."""
    imagine_s = 512 * FRAMES / gpu_row("gpu", "imagine", 512)["frames_per_s"]
    sync_s = POLICY_GB / WEIGHTS_GB_PER_S
    rows = []
    for actors in (1, 7, 63, 999):
        for staleness in (0, 2, 8):
            found = simulate(Rounds(200, 8, actors, imagine_s, UPDATE_S, sync_s, staleness))
            busy = (f"{found.learner_busy:.0%}", f"{found.actors_busy:.0%}")
            rows.append((f"{actors:,}", staleness, short(found.seconds), *busy, found.largest_lag))
    return markdown(("actors", "staleness", "200 updates", "learner busy", "actors busy", "largest lag"), rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=Path, help="result.json of a finished train-vla run")
    parser.add_argument("--compare", type=Path, help="JSON of a measured run")
    given = parser.parse_args(argv)
    if given.stages:
        print(stage_table(json.loads(given.stages.read_text())))
    elif given.compare:
        print(json.dumps(compare(json.loads(given.compare.read_text())), indent=1))
    else:
        run = json.loads(RUN.read_text())
        costs = markdown(("unit, two cores", "seconds"), [(k, f"{v:.3f}") for k, v in unit_costs(run).items()])
        print("\n\n".join((costs, stage_table(run), job_table(), rounds_table())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
