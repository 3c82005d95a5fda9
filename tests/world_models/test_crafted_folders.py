"""Folders with right checksums and wrong content, as a program or an attacker writes them: each is one error that names it."""

import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, WorldrlError
from worldrl.core.storage.artefact import MANIFEST, read_artefact, read_manifest, write_artefact
from worldrl.core.storage.jsonfile import digest
from worldrl.core.storage.weights import COUNTS, SIZES
from worldrl.policies.token.policy import TokenPolicy
from worldrl.world_models.loading import open_world_model

Loader = Callable[[Path], Any]


@pytest.fixture
def saved(tiny_policy, world_model, tmp_path) -> dict[str, tuple[Path, Loader]]:
    tiny_policy().save(tmp_path / "policy")
    world_model.save(tmp_path / "world")
    return {
        "policy": (tmp_path / "policy", lambda folder: TokenPolicy.load(folder, "cpu")),
        "video-world-model": (tmp_path / "world", open_world_model),
    }


def reseal(
    folder: Path, kind: str, target: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]
) -> None:
    """Copy an artefact with its config or tensors changed, and right checksums."""
    found = read_artefact(folder, kind=kind)
    config, tensors = copy.deepcopy(found.config), {name: t.clone() for name, t in found.tensors.items()}
    change(config, tensors)
    write_artefact(target, kind=kind, config=config, tensors=tensors)


KINDS = ("policy", "video-world-model")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(kind, bad, saved, tmp_path):
    folder, load = saved[kind]
    load(folder)
    names = [n for n, t in read_artefact(folder, kind=kind).tensors.items() if t.is_floating_point()]
    for name in names[:: max(1, len(names) // 8)]:
        reseal(folder, kind, tmp_path / "bad", lambda _, tensors, name=name: tensors[name].view(-1)[-1:].fill_(bad))
        with pytest.raises(ArtefactError, match=rf"{name}.*(not finite|must be finite|finite)"):
            load(tmp_path / "bad")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_other_types_shapes_and_names(kind, saved, tmp_path):
    folder, load = saved[kind]
    weight = next(n for n in read_artefact(folder, kind=kind).tensors if n.endswith("weight"))

    def cast(dtype: torch.dtype) -> Callable[..., None]:
        return lambda _, tensors: tensors.update({weight: tensors[weight].to(dtype)})

    changes: list[Callable[..., None]] = [
        *(cast(dtype) for dtype in (torch.float64, torch.int32, torch.float16, torch.bool)),
        lambda _, tensors: tensors.update({weight: tensors[weight][:1]}),
        lambda _, tensors: tensors.update({weight: tensors[weight].flatten()}),
        lambda _, tensors: tensors.update({"extra.weight": torch.zeros(2)}),
        lambda _, tensors: tensors.pop(weight),
    ]
    for number, change in enumerate(changes):
        reseal(folder, kind, tmp_path / str(number), change)
        with pytest.raises(ArtefactError, match=r"do not fit this version"):
            load(tmp_path / str(number))


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every dotted path of a config, branches too."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, (*path, name))


def put(config: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        config = config[name]
    config[path[-1]] = value


@pytest.mark.parametrize("kind", KINDS)
def test_300_changes_of_a_config_are_refused_or_make_the_same_module(kind, saved, tmp_path):
    """Another type, a wrong range, an absurd size: an error of ours within seconds, never a traceback or a hang."""
    folder, load = saved[kind]
    draw = np.random.default_rng(0)
    config = read_artefact(folder, kind=kind).config
    paths = list(leaves(config))
    values = (-1, 0, 10**9, 1.5, True, None, "x", "", [], [1, 2], {}, {"a": 1}, 1e300)
    refused = 0
    for _ in range(150):
        path, value = paths[draw.integers(len(paths))], values[draw.integers(len(values))]
        reseal(folder, kind, tmp_path / "bad", lambda config, _, p=path, v=value: put(config, p, v))
        began = time.process_time()
        try:
            load(tmp_path / "bad")
        except WorldrlError:
            refused += 1
        assert time.process_time() - began < 30, (path, value)
    assert refused > 90


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_the_weights_do_not_fill_are_refused_before_a_module_is_made(kind, saved, tmp_path):
    folder, load = saved[kind]
    config = read_artefact(folder, kind=kind).config
    paths = [p for p in leaves(config) if p[-1] in COUNTS | SIZES and type(_at(config, p)) is int]
    assert len(paths) > 4
    for path in paths:
        reseal(folder, kind, tmp_path / "bad", lambda config, _, p=path: put(config, p, 10**6))
        with pytest.raises(ArtefactError, match=rf"{path[-1]} is 1000000, but its weights are of"):
            load(tmp_path / "bad")


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_fields_are_refused_at_every_depth(kind, saved, tmp_path):
    folder, load = saved[kind]
    config = read_artefact(folder, kind=kind).config
    branches = [(), *(p for p in leaves(config) if isinstance(_at(config, p), dict) and p[0] != "trained_on")]
    for branch in branches:
        reseal(folder, kind, tmp_path / "bad", lambda config, _, b=branch: put(config, (*b, "wdith"), 3))
        with pytest.raises(ArtefactError, match=r"wdith"):
            load(tmp_path / "bad")


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


@pytest.mark.parametrize(
    "change",
    [
        {"files": None}, {"files": []}, {"files": {"config.json": 3}}, {"files": {"config.json": {"sha256": 1, "bytes": "x"}}},
        {"kind": None}, {"kind": 5}, {"restore_float32": None}, {"restore_float32": [1]}, {"parents": [{"path": 1}]},
        {"files": {"a\0b": {"sha256": "", "bytes": 0}}}, {"files": {"x" * 5000: {"sha256": "", "bytes": 0}}},
        {"files": {"config.json": {"sha256": "", "bytes": True}}}, {"schema": "1"},
    ],
)  # fmt: skip
def test_a_manifest_of_another_shape(change, saved):
    folder, load = saved["policy"]
    body = {k: v for k, v in json.loads((folder / MANIFEST).read_text()).items() if k != "digest"} | change
    (folder / MANIFEST).write_text(json.dumps(body | {"digest": digest(body)}))
    with pytest.raises(ArtefactError):
        read_manifest(folder)
    with pytest.raises(ArtefactError):
        load(folder)


def test_a_config_that_is_a_link_to_itself(saved):
    folder, load = saved["policy"]
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    with pytest.raises(ArtefactError, match=r"config.json"):
        load(folder)
