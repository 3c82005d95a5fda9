"""Every kind of JSON and YAML that a command reads back: random damage gives one line, never a traceback.

Each kind has a file as it is written, and what reads it. A damage takes a key away, puts a value of another type, null or a huge
number in some place, doubles a list, or cuts the file. The reader may refuse it by an error of worldrl, or take it (a number
may be changed to another number); every other exception is a bug. Seeds are fixed, so failures repeat.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from worldrl.cli import USER_ERROR, main
from worldrl.core.embodiment import Embodiment
from worldrl.core.errors import WorldrlError
from worldrl.core.statistics.intervals import wilson
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.learned import LEARNED, Learned
from worldrl.core.storage.run import RunDirectory
from worldrl.core.storage.stopwatch import Stopwatch, read_spent
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.offline.table import finished_runs, read_run
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import EvalLog, EvalResult, header_json
from worldrl.evaluation.report.model import Curve, Gate, Number, ReportData, Stage, SuccessRow, Table
from worldrl.evaluation.report.page import render
from worldrl.evaluation.report.store import load_report_data, save_report_data
from worldrl.evaluation.world_model.grasp_rule import GraspRule
from worldrl.rollout.real.specs import EpisodeOutcome

CONFIG = {"seed": 0, "tasks": ["a", "b"], "training": {"steps": 5, "rate": 0.1}}
ODD = (
    None,
    True,
    -1,
    0,
    7,
    2.5,
    1e308,
    10**30,
    10**400,
    "",
    "text",
    "é\u0000",
    [],
    [None],
    [[1]],
    {},
    {"a": {}},
    "1e999",
)
DAMAGES = 60


def open_run(folder: Path) -> RunDirectory:
    return RunDirectory.open(folder / "run", command="collect", config=CONFIG, resume_command="again")


def protocol() -> EvalProtocol:
    return EvalProtocol(
        suite="worldrl", suite_version="1", tasks=("A", "B"), episodes_per_task=2, seed=0, horizon={"A": 5, "B": 6},
        chunk_length=4, replan=2, control_hz=20, packages={"mujoco": "3"}, conventions={"settle": 10, "image": "as it is"},
    )  # fmt: skip


def make_run(folder: Path) -> None:
    with open_run(folder) as run:
        run.stage("01-a").finish({"rows": [1, 2.5, None], "nested": {"x": "y"}})


def read_stage(folder: Path) -> None:
    with open_run(folder) as run:
        assert run.stage("01-a").summary["nested"]["x"] == "y"


def reopen(folder: Path) -> None:
    with open_run(folder) as run:
        run.tick(force=True)


def make_evaluation(folder: Path) -> None:
    outcomes = [EpisodeOutcome(spec, True, False, 3, 2) for spec in protocol().specs()]
    EvalResult(protocol(), "a policy", "hash", tuple(outcomes), {"device": "cpu"}).save(folder)
    protocol().save(folder / "protocol.json")


def read_evaluation(folder: Path) -> None:
    json.dumps(EvalResult.load(folder).metrics())
    EvalLog(folder, header_json(protocol(), "a policy", "hash", {"device": "cuda"}))


def make_report(folder: Path) -> None:
    rate = wilson(3, 4)
    data = ReportData(
        "title", overall=SuccessRow("all", before=rate, after=rate), headline=[Number("n", 1.5, "s")],
        tables=[Table("t", ("a", "b"), [("1", "2")])], curves=[Curve("c", "x", "y", {"s": [(0, 1.0), (1, 2.0)]})],
        gates=[Gate("g", 0.5, 0.4, True)], stages=[Stage("s", 1.0)], seeds=[0], versions={"torch": "2"}, notes=["n"],
    )  # fmt: skip
    save_report_data(data, folder)


def make_offline_run(folder: Path) -> None:
    metrics = {
        "algorithm": "bc", "steps": 5, "scores": {"raw": {"value": 1.0}}, "evaluation": {"over_estimation": {"mean": 0.5}},
        "data": {"dataset_id": None, "source": "a/b.hdf5", "mean_return": -3.5}, "budget": {"episodes": 1, "steps": 9},
    }  # fmt: skip
    config = {"seed": 0, "algorithm": "bc"}
    with RunDirectory.open(folder / "run", command="train-offline", config=config, resume_command="again") as run:
        run.write_result(metrics, seed=0, device="cpu")


def read_offline_runs(folder: Path) -> None:
    for run in finished_runs(folder):
        json.dumps(asdict(read_run(run)))


def make_dataset(folder: Path) -> None:
    robot = Embodiment(0.02, 0.1, (0.2, -0.4, 0.0), (0.8, 0.4, 0.6), 1.0, 20.0)
    LeRobotWriter(folder / "d", fps=20, image_size=(16, 16), embodiment=robot).close()


def write_model(folder: Path, learned: bytes) -> None:
    write_artefact(folder / "m", kind="world_model", config={"width": 4}, files={LEARNED: learned})


def make_model(folder: Path) -> None:
    write_model(folder, Learned(frozenset({"a"}), frozenset({"b", "c"})).files()[LEARNED])


def make_watch(folder: Path) -> None:
    Stopwatch(folder / "spent.json").mark(now=True)


def make_rule(folder: Path) -> None:
    made_for = {"horizon": 3}
    GraspRule((0.1, 1.0, 2.0), 0.5, made_for, frozenset({("A", 1, -1, 0)})).save(folder / "rule.json")


def read_learned(folder: Path) -> None:
    """The manifest finds every damage first; what a program wrote wrongly it does not."""
    write_model(folder, (folder / "m" / LEARNED).read_bytes())
    Learned.read(folder / "m")


def read_model(folder: Path) -> None:
    read_artefact(folder / "m", kind="world_model")


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "run/stages/01-a/stage.json": (make_run, read_stage),
    "run/run_clock.json": (make_run, reopen),
    "run/config.yaml": (make_run, reopen),
    "evaluation.json": (make_evaluation, read_evaluation),
    "episodes.jsonl": (make_evaluation, read_evaluation),
    "protocol.json": (make_evaluation, lambda folder: EvalProtocol.load(folder / "protocol.json")),
    "report.json": (make_report, lambda folder: render(load_report_data(folder))),
    "run/result.json": (make_offline_run, read_offline_runs),
    "d/meta/info.json": (make_dataset, lambda folder: EpisodeDataset.open(folder / "d")),
    "d/meta/worldrl.jsonl": (make_dataset, lambda folder: EpisodeDataset.open(folder / "d")),
    "m/manifest.json": (make_model, read_model),
    "m/config.json": (make_model, read_model),
    "m/learned.json": (make_model, read_learned),
    "spent.json": (make_watch, lambda folder: (read_spent(folder / "spent.json"), Stopwatch(folder / "spent.json"))),
    "rule.json": (make_rule, lambda folder: GraspRule.load(folder / "rule.json")),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a plain value, the whole first."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def damaged(value: Any, draw: random.Random) -> Any:
    """Change one place."""
    *path, last = draw.choice([place for place in places(value) if place] or [(None,)])
    if draw.random() < 0.05 or last is None:
        return draw.choice(ODD)
    result = copy.deepcopy(value)
    at = result
    for key in path:
        at = at[key]
    if draw.random() < 0.3:
        del at[last]
    elif isinstance(at[last], list) and draw.random() < 0.3:
        at[last] = at[last] * 2
    else:
        at[last] = draw.choice(ODD)
    return result


def damaged_text(text: str, name: str, draw: random.Random) -> bytes:
    """A file with one damage: cut, without content, no UTF-8, or with a changed value."""
    kind = draw.random()
    if kind < 0.15:
        return text.encode()[: draw.randrange(len(text))]
    if kind < 0.2:
        return draw.choice((b"", b"\xff\xfe", b"[]", b"null", b"3", b'"text"', b"{}", b"1e999", b"[" * 3000, b"NaN"))
    if name.endswith(".yaml"):
        return yaml.safe_dump(damaged(yaml.safe_load(text), draw)).encode()
    lines = text.splitlines() if name.endswith(".jsonl") else [text]
    at = draw.randrange(len(lines))
    lines[at] = json.dumps(damaged(json.loads(lines[at]), draw))
    return ("\n".join(lines) + "\n").encode()


def said(read: Callable[[Path], Any], folder: Path, content: bytes) -> str:
    """The refusal of a reader, or nothing."""
    try:
        read(folder)
    except WorldrlError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"a traceback, with {content[:300]!r}") from error
    return ""


@pytest.mark.parametrize("name", KINDS)
def test_random_damage_is_one_error_or_harmless(name: str, tmp_path: Path) -> None:
    make, read = KINDS[name]
    make(tmp_path)
    path, draw = tmp_path / name, random.Random(name)
    text, refused = path.read_text(), 0
    read(tmp_path)
    for _ in range(DAMAGES):
        content = damaged_text(text, name, draw)
        path.write_bytes(content)
        if message := said(read, tmp_path, content):
            refused += 1
            assert "\n" not in message, content
            assert path.name in message or path.parent.name in message, (message, content)
    assert refused > 5


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("evaluation.json", "compare a={0} b={0}"),
        ("episodes.jsonl", "compare a={0} b={0}"),
        ("report.json", "report"),
        ("run/result.json", "benchmark-offline runs=[{0}]"),
        ("run/config.yaml", "benchmark-offline runs=[{0}]"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"[]", b"text", b'{"a": 1\n'])
def test_the_command_line_says_it_in_one_line(
    tmp_path: Path, capfd: Any, name: str, command: str, content: bytes
) -> None:
    make = make_offline_run if name.startswith("run/") else KINDS[name][0]
    make(tmp_path)
    (tmp_path / name).write_bytes(content)
    run = tmp_path if command == "report" else tmp_path / "new"
    assert main([*command.format(tmp_path).split(), f"run_dir={run}"]) == USER_ERROR
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert Path(name).name in lines[0]
