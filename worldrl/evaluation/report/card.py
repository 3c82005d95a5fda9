"""The card of a policy or a world model, in the hub's form: what it is, what it learned from, what was measured.

A number stands in a card only where its ``result.json`` names the artefact's hash. What a card of this kind should hold
and nobody measured is listed, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.artefact import MAKERS, artefact_hash, read_config, read_manifest
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.jsonfile import read_json
from worldrl.evaluation.report.tables import markdown
from worldrl.evaluation.report.words import duration, gain_interval, number, points, with_interval, with_rate

FILE = "README.md"
MAX_WORD = 300  # characters of a value that a card quotes
Found = Mapping[str, Any]
SUITE_SUCCESS = "success in the simulator"
GAIN = "gain of this policy over its predecessor, paired (points)"
WORLD = {
    **{f"closed_loop.psnr@{steps}": f"image similarity after {steps} control steps (dB)" for steps in (8, 32, 64, 128, 256)},
    "probe_error_cm@128": "position error of objects after 128 control steps (cm)",
    "action_swap_ratio": "error with another episode's actions over that with the true ones",
    "static_psnr": "similarity to the first frame while holding still (dB)",
    "recall": "real successes that are imagined to succeed",
    "precision": "imagined successes that were real, true actions",
    "false_success_rate": "real failures that are imagined to succeed (false positives)",
    "imagined_real_pearson": "correlation of imagined and real success over policies",
    "trust.imagined_successes": "imagined successes of policies that the simulator confirmed",
}  # fmt: skip
"""Numbers of ``evaluate-world-model`` in a card, by their path in ``metrics``."""
FURTHER = {
    "closed_loop.view_psnr@128": "the same, of the worst further camera (dB)",
    "closed_loop.state_cm@32": "measured position error after 32 control steps (cm)",
    "closed_loop.state_deg@32": "measured rotation error after 32 control steps (degrees)",
}
"""The same of models that also imagine further cameras or the measured state; a card does not ask for them."""
EXPECTED: Mapping[str, tuple[str, ...]] = {
    "policy": (SUITE_SUCCESS,),
    "video-world-model": tuple(WORLD.values()),
    "wan-world-model": tuple(WORLD.values()),
}


@dataclass(frozen=True)
class Measured:
    """One command's result about an artefact: its numbers by their meaning, and the words for where they come from."""

    rows: tuple[tuple[str, str], ...]
    source: tuple[tuple[str, str], ...]


def card(folder: Path, results: Sequence[Path]) -> str:
    """Write the Markdown page of an artefact's folder from ``result.json`` files.

    Raises ArtefactError (a folder or a file is missing or damaged, or a result is of another artefact).
    """
    manifest, identity = read_manifest(folder), artefact_hash(folder)
    if manifest["kind"] not in MAKERS:
        raise ArtefactError(f"{folder}: holds a {manifest['kind']!r}; a card describes {', '.join(MAKERS)}")
    found = [measured(read_json(path, error=ArtefactError), identity, path) for path in results]
    parts = [
        _front_matter(manifest["kind"]),
        f"# {_word(folder.resolve().name)}",
        f"A {manifest['kind']} of worldrl, version {_word(manifest['worldrl'])}, made {_word(manifest['created'])}.",
        "## What it is",
        markdown(("setting", "value"), _flat(read_config(folder))),
        "## What it learned from",
        _lineage(manifest),
        "## What was measured",
        *[_section(one) for one in found],
        _missing(manifest["kind"], found),
        "## How to load it",
        f"```python\n{_loading(manifest['kind'])}\n```",
        f"Hash of weights and settings: `{identity}`. Every file is checked when the folder is loaded.",
    ]
    return "\n\n".join(parts) + "\n"


def film_card(result: Found, name: str, rows: Sequence[tuple[str, str]], missing: Found, notes: Sequence[str]) -> str:
    """Return the page of a video model that is known by its films alone: numbers, and why others are not measured."""
    parts = [
        _front_matter("video-model", library=None),
        f"# {_word(name)}",
        "A video model, measured from films that it generated and films of the same events. The model was not loaded.",
        "## What was measured",
        _section(Measured(tuple(rows), source_of(result))),
        "## What was not measured",
        markdown(("number", "why"), [(key, _word(reason)) for key, reason in missing.items()]),
        "## How it was measured",
        "\n".join(f"- {_word(note)}" for note in notes),
    ]
    return "\n\n".join(parts) + "\n"


def write_card(folder: Path, results: Sequence[Path] = ()) -> Path:
    """Write :func:`card` as the folder's ``README.md``, and return its path."""
    path = folder / FILE
    write_file(path, card(folder, results).encode(), error=ArtefactError)
    return path


def measured(result: Found, identity: str, path: Path) -> Measured:
    """Take what one result says about an artefact; ArtefactError where it says nothing."""
    metrics: Found = result.get("metrics", {})
    rows = [*_policy_rows(metrics, identity), *_world_rows(metrics, identity), *_gate_rows(metrics, identity)]
    if not rows:
        raise ArtefactError(
            f"{path}: this result of {result.get('command')!r} measures another artefact than {identity[:12]}, or none; give "
            "results of evaluate, benchmark, compare, train-vla or evaluate-world-model on this folder"
        )
    return Measured(tuple(rows), source_of(result))


def source_of(result: Found) -> tuple[tuple[str, str], ...]:
    """Say where a result's numbers come from: command, code, protocol, hardware, time."""
    code: Found = result.get("code", {})
    return (
        ("command", f"worldrl {_word(result.get('command'))}, seed {_word(result.get('seed'))}"),
        ("code", f"{_word(code.get('version'))} at {_word(code.get('commit'))[:12]}"),
        ("hash of its settings", _word(result.get("config_hash"))[:12]),
        ("hash of its protocol", _word(result.get("protocol_hash") or "none")),
        ("hardware", f"{_word(result.get('hardware') or 'not recorded')}, {_word(result.get('device'))}"),
        ("wall time", duration(result.get("wall_s"))),
    )


def _policy_rows(metrics: Found, identity: str) -> list[tuple[str, str]]:
    compared: Found = metrics.get("comparison", metrics)
    if metrics.get("policy_hash") == identity:
        tasks = metrics.get("tasks") or {}
        return [
            (SUITE_SUCCESS, with_rate(metrics["success"])),
            *((_word(name), with_rate(rate)) for name, rate in tasks.items()),
        ]
    if compared.get("b_hash") == identity:
        paired = compared["paired"]
        gain = f"{points(paired['diff'])}, 95 % interval {gain_interval(paired)}, {paired['n']} pairs"
        return [(SUITE_SUCCESS, with_rate(compared["after"])), (GAIN, gain)]
    if compared.get("a_hash") == identity:
        return [(SUITE_SUCCESS, with_rate(compared["before"]))]
    return []


def _world_rows(metrics: Found, identity: str) -> list[tuple[str, str]]:
    about = metrics.get("world_model")
    if not isinstance(about, Mapping) or about.get("hash") != identity:
        return []
    found = ((meaning, _at(metrics, path)) for path, meaning in (WORLD | FURTHER).items())
    return [(meaning, _text(value)) for meaning, value in found if value is not None]


def _gate_rows(metrics: Found, identity: str) -> list[tuple[str, str]]:
    """Gates of the training that made it, on held-out episodes."""
    gates: Sequence[Found] = metrics.get("gates", ()) if metrics.get("hash") == identity else ()
    return [
        (
            f"gate {_word(gate['name'])}: {_word(gate['meaning'])}",
            f"{with_interval(gate)}, {'passed' if gate['passed'] else 'failed'}, needs {number(gate['threshold'])}",
        )
        for gate in gates
    ]


def _at(metrics: Found, path: str) -> Any:
    """Return a value by its own key, which may hold points, or by a path of keys."""
    if path in metrics:
        return metrics[path]
    first, _, rest = path.partition(".")
    inner = metrics.get(first)
    return _at(inner, rest) if rest and isinstance(inner, Mapping) else None


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and "rate" in value:
        return with_rate(value)
    if isinstance(value, Mapping):
        return f"{with_interval({**value, 'value': value.get('value', value.get('r'))})}, n = {value.get('n')}"
    return number(value)


def _front_matter(kind: str, library: str | None = "worldrl") -> str:
    named = f"library_name: {library}\n" if library else ""
    tags = "\n".join(f"- {tag}" for tag in ("robotics", "worldrl", kind))
    return f"---\n{named}pipeline_tag: robotics\ntags:\n{tags}\n---"


def _flat(values: Found, before: str = "") -> list[tuple[str, str]]:
    """Write nested settings as dotted names; long lists, such as the states it was trained on, as their length."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{before}{name}.")
        elif isinstance(value, list) and len(value) > 8:
            rows.append((f"{before}{name}", f"{len(value)} entries"))
        elif isinstance(value, list):
            rows.append((_word(f"{before}{name}"), _word(", ".join(map(str, value)))))
        elif value is not None:
            rows.append((_word(f"{before}{name}"), _word(value)))
    return rows


def _word(value: object) -> str:
    """Write a value from a file as one line of a table, without Markdown's marks."""
    return re.sub(r"[|`<>\[\]\\\s]+", " ", str(value)).strip()[:MAX_WORD] or "unknown"


def _lineage(manifest: Found) -> str:
    """Name parents by the end of their path: the rest is of somebody's machine."""
    rows = [(_word("/".join(Path(one["path"]).parts[-2:])), f"`{one['hash'][:12]}`") for one in manifest["parents"]]
    return markdown(("data or weights", "hash"), rows) if rows else "Its folder does not say."


def _section(one: Measured) -> str:
    return "\n\n".join([markdown(("number, 95 % interval", "value"), one.rows), markdown(("source", ""), one.source)])


def _missing(kind: str, found: Sequence[Measured]) -> str:
    known = {meaning for one in found for meaning, _ in one.rows}
    lacking = [meaning for meaning in EXPECTED.get(kind, ()) if meaning not in known]
    return (
        "Not measured: " + "; ".join(lacking) + "."
        if lacking
        else "Everything that a card of this kind lists was measured."
    )


def _loading(kind: str) -> str:
    if kind == "policy":
        return 'from worldrl.policies.token.policy import TokenPolicy\n\npolicy = TokenPolicy.from_pretrained("OWNER/NAME")'
    if kind.endswith("world-model"):
        name = "video" if kind.startswith("video") else "wan"
        what = "VideoWorldModel" if name == "video" else "WanWorldModel"
        return f'from worldrl.world_models.{name}.model import {what}\n\nmodel = {what}.from_pretrained("OWNER/NAME")'
    return "# see the documentation of worldrl for this kind"
