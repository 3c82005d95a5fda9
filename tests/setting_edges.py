"""Edges of every numeric setting of every command: ``python tests/setting_edges.py FOLDER outside|stated|ends [COMMAND ...]``.

``outside``: values beyond each range, also negative, zero, 1e30, NaN and infinity. Each must be refused before the job starts.
``stated``: both ends of each range, in the settings' own checks. What refuses them may name another setting, not another range.
``ends``: both ends of each range, in a process of its own at the size of ``preset=tiny``. It runs, or is refused.

``LIMIT_S`` and ``EVERY`` in the environment: seconds for each run of ``ends``, and only each n-th setting.
A refusal is one line on stderr that names the setting, with the exit code of a user's mistake, within 60 s.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from worldrl import cli
from worldrl.commands import COMMANDS, Command
from worldrl.core.errors import SettingError
from worldrl.ranges import Range, range_of
from worldrl.registry import ALGORITHMS
from worldrl.reproductions.catalogue import CATALOGUE
from worldrl.settings import build, compose_plain, presets_of, set_value
from worldrl.usage import REQUIRED, SettingRow, bare_hint, describe

LIMIT_S, MEMORY = 60, 8 * 2**30
AGENTS = [name for name in ALGORITHMS.names() if name not in ("grpo", "behaviour_cloning")]
VARIANTS: list[tuple[str, dict[str, str]]] = [
    *((name, {}) for name in COMMANDS),
    *(("train-offline", {"algorithm": name}) for name in AGENTS),
]
"""Commands, and ``train-offline`` with each algorithm, whose settings it then has."""

OFFLINE = "runs/make-dataset-tiny/datasets/worldrl/pendulum-v1/medium-replay-v0"
ADAPTER = Path(__file__).parent / "workers/reach_adapter.py"
TINY = {
    "collect": "image_size=32 noisy_episodes=0 expert_episodes=1",
    "restyle": "data=runs/collect-tiny/dataset styles=[dim]",
    "extend": "",
    "train-policy": "",
    "train-world-model": "",
    "train-idm": "",
    "imagine": "world_model=runs/train-world-model-tiny/world_model data=runs/collect-tiny/dataset episodes=1",
    "evaluate": "policy=runs/train-policy-tiny/policy episodes=1",
    "evaluate-world-model": "world_model=runs/train-world-model-tiny/world_model data=[runs/unseen/dataset]",
    "align-world-model": "start=runs/planner/world_model folders.idm=runs/train-idm-tiny/idm data=[runs/collect-tiny/dataset]",
    "check-protocol": "data=runs/collect-tiny/dataset episodes=1",
    "check-suite": f"suite={ADAPTER}:Reach episodes=1",
    "serve-policy": "policy=runs/two-arms-policy/policy",
    "serve-world-model": "world_model=runs/train-world-model-tiny/world_model",
    "train-vla": "",
    "setup": "",
    "benchmark": "policy=runs/train-policy-tiny/policy tasks=[PickRedCube] episodes=1 workers=0",
    "make-dataset": f"env=Pendulum-v1 store={os.devnull}-{{case}}",
    "train-offline": f"data={OFFLINE} video_episodes=0",
    "benchmark-offline": f"data=[{OFFLINE}] algorithms=[bc] candidates=[bc] rivals=[bc] seeds=1 workers=0",
    "reproduce": "name=neubay-bandit workers=0 seeds=1",
    "doctor": "",
    "report": "run_dir=runs/train-policy-tiny",
}
"""What each command needs at its smallest size, for ``ends``; ``compare`` and ``methods`` have no number."""
PREPARED = {
    "collect-tiny": "collect",
    "train-policy-tiny": "train-policy",
    "train-world-model-tiny": "train-world-model",
    "train-idm-tiny": "train-idm",
    "make-dataset-tiny": "make-dataset",
    "planner": "train-world-model model.dynamics.planning=true training.action_dropout=0.5 model.dynamics.frame_stride=1",
    "unseen": "collect seed=7",
    "two-arms": "collect tasks=[BimanualLiftPot] expert_episodes=2 noisy_episodes=0 image_size=32",
    "two-arms-policy": "train-policy data=[runs/two-arms/dataset] model.image_size=32",
}
"""Run directory → command, of what the others read."""


# --- settings and values -------------------------------------------------------------------------------------------


def kind(row: SettingRow) -> Any:
    """The type of a setting's number, or of its items."""
    hint = bare_hint(row.hint)
    while get_origin(hint) in (list, tuple, dict):
        hint = next(a for a in reversed(get_args(hint)) if a is not Ellipsis)
    return hint


def numeric(name: str, given: dict[str, str]) -> Iterator[SettingRow]:
    """The numeric settings of a command."""
    yield from (row for row in describe(COMMANDS[name].schema(given)) if kind(row) in (int, float))


def own_rows(name: str, given: dict[str, str]) -> list[SettingRow]:
    """The numeric settings, of an algorithm only its own."""
    return [row for row in numeric(name, given) if "algorithm" not in given or row.key.startswith("agent.")]


def fill(name: str, given: dict[str, str], preset: str) -> dict[str, str]:
    """A whole command line: what has no default is some text."""
    schema = COMMANDS[name].schema(given)
    return {**{row.key: "x" for row in describe(schema) if row.default == REQUIRED}, **given, "preset": preset}


def outside(allowed: Range) -> Iterator[float]:
    """Numbers beyond a range: everywhere, just below, just above, and open ends themselves."""
    yield from (math.nan, math.inf, -math.inf, 1e30, -1e30)
    yield from (value for value in (-1, 0, allowed.low - 1, allowed.high + 1) if value not in allowed)
    yield from ([allowed.low] if allowed.above else [])
    yield from ([allowed.high] if allowed.below else [])


def ends(allowed: Range, whole: bool) -> tuple[float, float]:
    """The lowest and the highest number of a range."""
    step = 1 if whole else 1e-6
    return allowed.low + step * allowed.above, allowed.high - step * allowed.below


def written(row: SettingRow, value: float) -> str:
    """One token of a command line."""
    text = str(int(value)) if kind(row) is int and math.isfinite(value) else repr(float(value))
    origin = get_origin(bare_hint(row.hint))
    if origin is dict:
        return f"{row.key}.x={text}"
    return f"{row.key}=[{text}]" if origin in (list, tuple) else f"{row.key}={text}"


def held(row: SettingRow, value: float) -> Any:
    """A number as settings hold it."""
    number, origin = kind(row)(value), get_origin(bare_hint(row.hint))
    return {"x": number} if origin is dict else [number] if origin in (list, tuple) else number


def effect_tokens() -> Iterator[tuple[str, str]]:
    """``reproduce``: each effect's numbers, which ``change.`` sets."""
    for name, entry in CATALOGUE.items():
        for field, value in vars(entry.load().SETTINGS["tiny"]).items():
            allowed = range_of(f"change.{field}")
            if isinstance(value, str) or allowed is None:
                continue
            for number in outside(allowed):
                text = str(int(number)) if isinstance(value, int) and math.isfinite(number) else repr(float(number))
                yield name, f"change.{field}={text}"


# --- values outside --------------------------------------------------------------------------------------------------


class Started(BaseException):
    """The job began: nothing was refused."""


def refused(arguments: list[str], named: str) -> str:
    """Run a command line up to its job; empty if it is refused as it should be, else what came."""
    said, began = io.StringIO(), time.monotonic()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = cli.run(arguments)
    except Started:
        return "taken"
    except Exception as error:
        return f"traceback {type(error).__name__}: {error}"
    lines = [line for line in said.getvalue().splitlines() if line.startswith("worldrl: ")]
    seconds = time.monotonic() - began
    if code != cli.USER_ERROR or len(lines) != 1 or len(said.getvalue().splitlines()) != 1:
        return f"exit code {code}: {said.getvalue()!r}"
    return "" if named in lines[0] and seconds < LIMIT_S else f"{seconds:.0f} s: {lines[0]}"


@contextlib.contextmanager
def without_jobs(only: type[Any] | None = None) -> Iterator[None]:
    """Jobs that raise ``Started``; ``only``: the settings of every command, made once."""

    def begin(_: Any) -> NoReturn:
        raise Started

    load, schema = Command.load, Command.schema
    Command.load = lambda self: (begin, load(self)[1])
    if only is not None:
        Command.schema = lambda self, given: only
    try:
        yield
    finally:
        Command.load, Command.schema = load, schema


def lines_outside(name: str, given: dict[str, str]) -> Iterator[tuple[list[str], str]]:
    """Command lines with one value outside its range, and the name of that setting."""
    whole = fill(name, given, "tiny" if "tiny" in presets_of(name) else "cpu")
    for row in own_rows(name, given):
        allowed = range_of(row.key, name)
        assert allowed is not None, row.key
        for value in outside(allowed):
            words = [f"{key}={text}" for key, text in whole.items() if key != row.key]
            yield [name, *words, written(row, value)], row.key
    if name == "reproduce":
        for effect, token in effect_tokens():
            yield [name, effect, "scale=tiny", token], token.partition("=")[0]


def check_outside(name: str, given: dict[str, str], every: int = 1) -> tuple[int, list[str]]:
    """How many command lines were tried, and what was wrong; ``every``: only each n-th."""
    lines = list(lines_outside(name, given))[::every]
    with without_jobs(COMMANDS[name].schema(given)):
        found = {" ".join(line): refused(line, named) for line, named in lines}
    return len(lines), [f"{line}\n    {what}" for line, what in found.items() if what]


# --- ends, in the settings' own checks --------------------------------------------------------------------------------


OTHER_RANGE = re.compile(
    r"must be (?:positive|zero or more|(?:at least|above|below) [\d.]+|in [\[(][\d.]+, [\d.]+[\])])(?!\^|[^,;]*=| and (?:above|below) [a-z]| where )"
)
"""A rule that depends on no other setting, so that ``--help`` can state it."""


def check_stated(name: str, given: dict[str, str]) -> tuple[int, list[str]]:
    """How many ends were tried, and which of them the settings' own checks refuse by a narrower rule.

    The command is composed once. Each end then replaces one of its values, and the dataclasses are made anew.
    """
    schema, found, tried = COMMANDS[name].schema(given), list[str](), 0
    plain = compose_plain(name, schema, fill(name, given, "tiny" if "tiny" in presets_of(name) else "cpu"))
    for row in own_rows(name, given):
        allowed = range_of(row.key, name)
        assert allowed is not None, row.key
        for value in ends(allowed, kind(row) is int):
            changed = copy.deepcopy(plain)
            number = int(value) if kind(row) is int else float(value)
            origin = get_origin(bare_hint(row.hint))
            set_value(
                changed, row.key, {"x": number} if origin is dict else [number] if origin in (list, tuple) else number
            )
            tried += 1
            try:
                build(schema, changed)
            except SettingError as error:
                found += [f"{name} {written(row, value)}: {error}"] if OTHER_RANGE.search(str(error)) else []
    return tried, found


# --- ends ------------------------------------------------------------------------------------------------------------


def prepare(folder: Path) -> None:
    """Make the small results that other commands read."""
    for name, line in PREPARED.items():
        words = [*line.split(), "preset=tiny", f"run_dir=runs/{name}"]
        if not (folder / f"runs/{name}/result.json").exists():
            subprocess.run([sys.executable, "-m", "worldrl", *words], cwd=folder, check=True, timeout=300)


def child(arguments: list[str], output: Path) -> NoReturn:
    """Run a command line in this forked process, with little memory, and end it."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = sys.stderr = os.fdopen(file, "w")  # pytest puts objects of its own there
    try:
        code = cli.main(arguments)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def in_a_fork(arguments: list[str], output: Path, limit_s: float) -> tuple[int | None, str]:
    """Exit code (None if it still ran after the limit) and output of a command line."""
    pid = os.fork()
    if not pid:
        child(arguments, output)
    until, status = time.monotonic() + limit_s, (0, 0)
    while status[0] == 0 and time.monotonic() < until:
        time.sleep(0.05)
        status = os.waitpid(pid, os.WNOHANG)
    if status[0]:
        return os.waitstatus_to_exitcode(status[1]), output.read_text(errors="replace")
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None, output.read_text(errors="replace")


def verdict(code: int | None, said: str, seconds: float) -> str:
    """What a run at an end came to: runs, refused, still running, or what was wrong."""
    lines = [line for line in said.splitlines() if line.startswith("worldrl: ")]
    if "Traceback (most recent call last)" in said or (code is not None and code < 0):
        return f"WRONG {code}: {said.strip().splitlines()[-1][:200] if said.strip() else ''}"
    if code is None:
        return "still running"
    if code in (cli.OK, cli.GATE_FAILED):
        return "runs"
    if code == cli.USER_ERROR and len(lines) == 1 and seconds < LIMIT_S:
        return f"refused: {lines[0][:220]}"
    return f"WRONG {code}: {said[-200:]}"


def check_ends(folder: Path, name: str, given: dict[str, str], limit_s: float) -> dict[str, str]:
    """Run a command at both ends of each of its settings; the verdict of each token."""
    found: dict[str, str] = {}
    scratch = folder / "case"
    for number, row in enumerate(own_rows(name, given)[:: int(os.environ.get("EVERY", "1"))]):
        allowed = range_of(row.key, name)
        assert allowed is not None, row.key
        for value in ends(allowed, kind(row) is int):
            token, began = written(row, value), time.monotonic()
            tiny = TINY[name].replace(f"{os.devnull}-{{case}}", str(scratch / "store"))
            words = [word for word in tiny.split() if word.partition("=")[0] != row.key]
            words += [f"{key}={text}" for key, text in given.items()]
            words += [f"run_dir={scratch / 'run'}"] if COMMANDS[name].owns_run_dir else []
            subprocess.run(["rm", "-rf", str(scratch)], check=True, timeout=60)
            scratch.mkdir()
            code, said = in_a_fork([name, "preset=tiny", *words, token], folder / f"out-{number}", limit_s)
            (folder / f"out-{number}").unlink()
            found[token] = verdict(code, said, time.monotonic() - began)
            print(f"  {token:50} {found[token]}", flush=True)
    return found


def main(words: list[str]) -> int:
    """Check what is asked for, print counts and what was wrong, write ``edges-*.json``; 1 if anything was wrong."""
    folder, what, names = Path(words[0]).resolve(), words[1], words[2:]
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    chosen = [(name, given) for name, given in VARIANTS if not names or name in names]
    wrong, counts = [], Counter[str]()
    if what == "ends":
        prepare(folder)
        chosen = [(name, given) for name, given in chosen if name in TINY]
    for name, given in chosen:
        print(name, *given.values(), flush=True)
        if what != "ends":
            tried, found = (check_outside if what == "outside" else check_stated)(name, given)
            counts["tried"] += tried
            wrong += found
            print(f"  {tried} values, {len(found)} wrong", *found, sep="\n  ", flush=True)
        else:
            verdicts = check_ends(folder, name, given, float(os.environ.get("LIMIT_S", LIMIT_S)))
            counts.update(text.partition(":")[0].split()[0] for text in verdicts.values())
            wrong += [f"{name} {given} {token}: {text}" for token, text in verdicts.items() if text.startswith("WRONG")]
    print(dict(counts), f"{len(wrong)} wrong", *wrong, sep="\n")
    (folder / f"edges-{what}.json").write_text(json.dumps({"counts": counts, "wrong": wrong}, indent=1))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
