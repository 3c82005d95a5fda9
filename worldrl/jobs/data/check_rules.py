"""``worldrl check-rules``: how often recorded episodes break rules that signal temporal logic states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.statistics.intervals import paired, wilson
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.log import Progress, console
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset, open_recorded, require_alike
from worldrl.evaluation.report.model import ReportData, Table
from worldrl.evaluation.report.store import publish
from worldrl.evaluation.report.tables import csv_bytes, print_table
from worldrl.evaluation.report.words import count, gain_interval, number, points, with_rate
from worldrl.recipes.run import claim_inputs, open_run
from worldrl.rewards.rules_file import Rules
from worldrl.rewards.temporal_logic import Rule
from worldrl.rollout.real.specs import scene_digest
from worldrl.settings import setting

HEADERS = ("recording", "episode", "task", "rule", "robustness", "broken")
DATA, AGAINST = "data", "against"
FLAGS = ("contact",)
"""Signals that are yes or no: whether the fingers touch a task object."""
NOTES = (
    "An episode breaks a rule where the robustness at its first frame is below 0.",
    "A robustness has the unit of the rule's signals. The lowest one names its episode.",
    "Differences are paired by initial state, and are given where both recordings have the same ones.",
)


@dataclass
class CheckRulesSettings:
    """Which rules, and which recordings."""

    rules: str = setting("rules.yaml", "YAML file: rules, a name and a text each")
    data: list[str] = setting(["runs/collect/dataset"], "dataset folders: worldrl's, or a LeRobotDataset v3.0")
    against: list[str] = setting([], "dataset folders of other episodes, for example of the policy before a training")
    run_dir: str = setting("runs/check-rules", "where everything is written")


@dataclass(frozen=True)
class Checked:
    """One episode: its number, task and initial state, and each rule's robustness."""

    number: int
    task: str
    scene: str
    robustness: Sequence[float]


def main(settings: CheckRulesSettings) -> dict[str, Any]:
    """Check every episode, write ``result.json``, ``robustness.csv`` and the page, and print the closing table.

    Returns the metrics: per rule the share of broken episodes with its interval, the lowest robustness and its episode.
    Raises SettingError (a rule that cannot be read, or on signals that nobody recorded) and ArtefactError (no data).
    """
    if not settings.data:
        raise SettingError("data: name at least one dataset folder")
    rules = Rules.read(Path(settings.rules)).rules
    recordings = {name: opened(getattr(settings, name)) for name in (DATA, AGAINST) if getattr(settings, name)}
    for dataset in recordings.values():
        for rule in rules:
            rule.check(signal_names(dataset.header.embodiment), FLAGS, frame_s=1 / dataset.fps)
    with open_run("check-rules", settings) as run:
        hashes = {name: dataset.fingerprint for name, dataset in recordings.items()}
        claim_inputs(run, {"rules": {rule.name: rule.text for rule in rules}, **hashes})
        checked = {name: robustness_of(dataset, rules) for name, dataset in recordings.items()}
        metrics = {rule.name: measured(rule, place, checked) for place, rule in enumerate(rules)}
        run.write_result({"rules": metrics, "episodes": {n: len(c) for n, c in checked.items()}}, seed=0, device="cpu")
        write_file(run.path / "robustness.csv", csv_bytes(HEADERS, lines(rules, checked)), error=ArtefactError)
        table = table_of(metrics, compared=AGAINST in checked)
        publish(run, report_page(table, metrics, checked))
    print_table(table, console())
    console().print(f"every episode: {run.path / 'robustness.csv'}", markup=False, soft_wrap=True)
    return metrics


def opened(folders: Sequence[str]) -> EpisodeDataset:
    """Open datasets as one; ArtefactError where one is missing, damaged, or of another robot or rate."""
    datasets = [open_recorded(folder) for folder in folders]
    require_alike(datasets, "embodiment", "fps")
    return datasets[0].concatenate(*datasets[1:])


def signal_names(robot: AnyEmbodiment) -> list[str]:
    """Names of the numbers in rules: measured ones, ``command.NAME``, and the first gripper's ``opening``."""
    return [*robot.state_names, *(f"command.{name}" for name in robot.command_names), "opening"]


def signals_of(episode: Episode, robot: AnyEmbodiment) -> dict[str, Tensor]:
    """Signals of one episode, ``[T+1]`` each: float64 by :func:`signal_names`, and the :data:`FLAGS`."""
    opening = episode.opening[:, 0] if episode.opening.shape[1] else np.zeros(len(episode) + 1)
    numbers = [*episode.state.T, *episode.command.T, opening]
    found = dict(zip(signal_names(robot), (torch.from_numpy(np.float64(c)) for c in numbers), strict=True))
    return found | {FLAGS[0]: torch.from_numpy(episode.contact)}


def robustness_of(dataset: EpisodeDataset, rules: Sequence[Rule]) -> list[Checked]:
    """Check every episode against every rule."""
    found, robot, frame_s = list[Checked](), dataset.header.embodiment, 1 / dataset.fps
    with Progress("check-rules", total=len(dataset), unit="episodes") as progress:
        for place, record in enumerate(dataset.records):
            signals = signals_of(dataset[place], robot)
            values = [float(rule.robustness(signals, frame_s)[0]) for rule in rules]
            for rule, value in zip(rules, values, strict=True):
                if math.isnan(value):
                    raise rule.refused(
                        f"is undecided in episode {place} of {dataset.source}: a division of 0 by 0, or NaN"
                    )
            found.append(Checked(place, record.task, scene_digest(record), values))
            progress.advance()
    return found


def measured(rule: Rule, place: int, checked: dict[str, list[Checked]]) -> dict[str, Any]:
    """What one rule's episodes amount to, per recording, and the paired difference where both have the same scenes."""
    found: dict[str, Any] = {"text": rule.text}
    for name, episodes in checked.items():
        broken = [episode.robustness[place] < 0 for episode in episodes]
        worst = min(episodes, key=lambda episode: episode.robustness[place])
        lowest = {"robustness": worst.robustness[place], "episode": worst.number, "task": worst.task}
        found[name] = {"broken": wilson(sum(broken), len(broken)), "lowest": lowest}
    if AGAINST in checked and (pairs := paired_scenes(checked)):
        before, after = ([pair[side].robustness[place] < 0 for pair in pairs] for side in (0, 1))
        found["difference"] = paired(before, after)
    return found


def paired_scenes(checked: dict[str, list[Checked]]) -> list[tuple[Checked, Checked]]:
    """Pair the episodes of ``against`` and ``data`` by initial state; none where these are not the same, once each."""
    before, after = ({episode.scene: episode for episode in checked[name]} for name in (AGAINST, DATA))
    if set(before) != set(after) or not len(before) == len(checked[AGAINST]) == len(checked[DATA]):
        return []
    return [(before[scene], after[scene]) for scene in before]


def table_of(metrics: dict[str, Any], *, compared: bool) -> Table:
    """Lay out the closing table."""
    headers = ["rule", "broken", *(["against", "difference"] if compared else []), "lowest"]
    rows = list[list[str]]()
    for name, found in metrics.items():
        lowest = found[DATA]["lowest"]
        more = [with_rate(found[AGAINST]["broken"]), _difference(found)] if compared else []
        shown = f"{number(lowest['robustness'])} (episode {lowest['episode']})"
        rows.append([name, with_rate(found[DATA]["broken"]), *more, shown])
    return Table("Rules", headers, rows, "Share of episodes that break each rule, with its 95 % interval.")


def _difference(found: dict[str, Any]) -> str:
    if "difference" not in found:
        return "not paired"
    return f"{points(found['difference']['diff'])} [{gain_interval(found['difference'])}]"


def report_page(table: Table, metrics: dict[str, Any], checked: dict[str, list[Checked]]) -> ReportData:
    """Gather what the page shows."""
    texts = Table("What the rules say", ("rule", "text"), [[name, found["text"]] for name, found in metrics.items()])
    return ReportData(
        title=f"{count(len(metrics), 'rule')}, {count(len(checked[DATA]), 'episode')}",
        sentence=sentence(metrics),
        sections=("measurements", "notes", "configuration"),
        tables=[table, texts],
        notes=NOTES,
    )


def sentence(metrics: dict[str, Any]) -> str:
    """Name the rule that the most episodes break."""
    name = max(metrics, key=lambda rule: metrics[rule][DATA]["broken"]["k"])
    broken = metrics[name][DATA]["broken"]
    if not broken["k"]:
        return f"No rule is broken in {count(broken['n'], 'episode')}."
    return f"The rule broken most often is {name}, by {broken['k']} of {count(broken['n'], 'episode')}."


def lines(rules: Sequence[Rule], checked: dict[str, list[Checked]]) -> list[list[Any]]:
    """Return a line per recording, episode and rule."""
    return [
        [name, episode.number, episode.task, rule.name, value, int(value < 0)]
        for name, episodes in checked.items()
        for episode in episodes
        for rule, value in zip(rules, episode.robustness, strict=True)
    ]
