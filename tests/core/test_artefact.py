import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError
from worldrl.core.rng import stream
from worldrl.core.storage.artefact import (
    Artefact,
    artefact_hash,
    parent,
    read_artefact,
    read_config,
    read_manifest,
    write_artefact,
)
from worldrl.core.storage.jsonfile import digest
from worldrl.core.storage.weights import fitting

CONFIG = {"width": 64, "lr": 1e-5, "names": ["a", "ü"], "nested": {"flag": True, "none": None}}


def make_tensors() -> dict[str, torch.Tensor]:
    generator = stream(0, "tensors")
    weight = torch.randn(5, 3, generator=generator)
    return {
        "weight": weight,
        "tied": weight,
        "view": weight[1:3, :2],
        "bf16": weight.bfloat16(),
        "count": torch.tensor(7),
        "mask": weight > 0,
        "empty": torch.zeros(0, 4),
        "double": weight.double() * 1e300,
    }


def make(folder: Path, **changes) -> str:
    given = {"kind": "policy", "config": CONFIG, "tensors": make_tensors(), "files": {"notes/readme.txt": b"hello"}}
    return write_artefact(folder, **(given | changes))


def test_round_trip_is_exact(tmp_path):
    identity = make(tmp_path / "a", parents=[{"path": "data/x", "hash": "00"}])
    artefact = read_artefact(tmp_path / "a", kind="policy")
    assert artefact.config == CONFIG
    assert artefact.file("notes/readme.txt") == b"hello"
    assert artefact.tensors.keys() == make_tensors().keys()
    for name, tensor in make_tensors().items():
        assert artefact.tensors[name].dtype == tensor.dtype
        assert torch.equal(artefact.tensors[name], tensor)
    assert artefact.manifest["parents"] == [{"path": "data/x", "hash": "00"}]
    assert artefact.hash == artefact_hash(tmp_path / "a") == identity
    assert parent(tmp_path / "a") == {"path": str(tmp_path / "a"), "hash": identity}


def test_config_on_disk_names_schema_and_kind_and_manifest_lists_every_file(tmp_path, listing):
    make(tmp_path / "a")
    files = listing(tmp_path / "a")
    assert json.loads(files["config.json"]) == {"schema": 1, "kind": "policy", **CONFIG}
    listed = json.loads(files["manifest.json"])["files"]
    assert {name: entry["bytes"] for name, entry in listed.items()} == {
        name: len(data) for name, data in files.items() if name != "manifest.json"
    }


def test_hash_tells_content_not_time_or_key_order(tmp_path):
    first = make(tmp_path / "a")
    assert make(tmp_path / "b") == first
    assert make(tmp_path / "c", parents=[{"path": "x", "hash": "y"}]) == first
    assert make(tmp_path / "d", config=CONFIG | {"lr": 2e-5}) != first
    changed = make_tensors() | {"count": torch.tensor(8)}
    assert make(tmp_path / "e", tensors=changed) != first


def test_without_tensors(tmp_path):
    make(tmp_path / "a", tensors=None)
    assert read_artefact(tmp_path / "a", kind="policy").tensors == {}
    assert not (tmp_path / "a" / "model.safetensors").exists()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_storage_restores_float32_of_the_rounded_value(tmp_path, dtype):
    tensors = {"weight": torch.randn(100, 100, generator=stream(0, "half")), "count": torch.tensor(3)}
    make(tmp_path / "half", tensors=tensors, store_dtype=dtype)
    make(tmp_path / "full", tensors=tensors)
    artefact = read_artefact(tmp_path / "half", kind="policy")
    assert artefact.tensors["weight"].dtype == torch.float32
    assert torch.equal(artefact.tensors["weight"], tensors["weight"].to(dtype).float())
    assert artefact.tensors["count"].dtype == torch.int64
    assert artefact.manifest["store_dtype"] == str(dtype).removeprefix("torch.")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "full")]
    assert sizes[0] < 0.55 * sizes[1]


def test_half_storage_refuses_what_does_not_fit(tmp_path):
    with pytest.raises(ArtefactError, match=r"'weight': 1e\+05 does not fit torch.float16"):
        make(tmp_path / "a", tensors={"weight": torch.tensor([1e5])}, store_dtype=torch.float16)
    assert list(tmp_path.iterdir()) == []


def test_replacing_drops_old_files(tmp_path, listing):
    make(tmp_path / "a")
    make(tmp_path / "a", files={}, tensors=None)
    assert sorted(listing(tmp_path / "a")) == ["config.json", "manifest.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_any_truncation_of_any_file_is_found(tmp_path, listing):
    make(tmp_path / "a")
    for name, data in listing(tmp_path / "a").items():
        path = tmp_path / "a" / name
        last = len(data.rstrip()) - 1  # without its final newline a JSON file is still whole
        for size in sorted({0, 1, last, *(len(data) * i // 16 for i in range(16))}):
            path.write_bytes(data[:size])
            with pytest.raises(ArtefactError, match=path.name):
                read_artefact(tmp_path / "a", kind="policy")
        path.write_bytes(data)
    read_artefact(tmp_path / "a", kind="policy")


def test_any_flipped_bit_in_any_file_is_found(tmp_path, listing):
    make(tmp_path / "a")
    generator = np.random.default_rng(0)
    for name, data in listing(tmp_path / "a").items():
        path = tmp_path / "a" / name
        for _ in range(200):
            flipped = bytearray(data)
            flipped[generator.integers(len(data))] ^= 1 << int(generator.integers(8))
            path.write_bytes(flipped)
            with pytest.raises(ArtefactError):
                read_artefact(tmp_path / "a", kind="policy")
        path.write_bytes(data)


def test_an_extra_file_changed_after_loading_is_found(tmp_path):
    make(tmp_path / "a")
    artefact = read_artefact(tmp_path / "a", kind="policy")
    (tmp_path / "a" / "notes" / "readme.txt").write_bytes(b"jello")
    with pytest.raises(ArtefactError, match="damaged or altered"):
        artefact.file("notes/readme.txt")
    with pytest.raises(ArtefactError, match=r"no file 'other' in its manifest; it lists config.json"):
        artefact.file("other")


def test_the_config_is_read_and_verified_without_the_tensors(tmp_path):
    make(tmp_path / "a")
    (tmp_path / "a/model.safetensors").unlink()
    assert read_config(tmp_path / "a") == read_config(tmp_path / "a", kind="policy") == CONFIG
    with pytest.raises(ArtefactError, match="holds a 'policy', expected a 'probe'"):
        read_config(tmp_path / "a", kind="probe")
    file = tmp_path / "a/config.json"
    file.write_bytes(file.read_bytes().replace(b"64", b"65"))
    with pytest.raises(ArtefactError, match="damaged or altered"):
        read_config(tmp_path / "a")


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(ArtefactError, match="no such folder"):
        read_artefact(tmp_path / "none", kind="policy")
    make(tmp_path / "a")
    with pytest.raises(ArtefactError, match="is a file; give the artefact's folder"):
        read_artefact(tmp_path / "a" / "config.json", kind="policy")
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(ArtefactError, match=r"model.safetensors: missing"):
        read_artefact(tmp_path / "a", kind="policy")
    (tmp_path / "a" / "manifest.json").unlink()
    with pytest.raises(ArtefactError, match=r"no manifest.json \(found config.json, notes\)"):
        read_artefact(tmp_path / "a", kind="policy")


def test_wrong_kind_and_schema_are_named(tmp_path):
    make(tmp_path / "a")
    with pytest.raises(ArtefactError, match="holds a 'policy', expected a 'world_model'"):
        read_artefact(tmp_path / "a", kind="world_model")
    edit_manifest(tmp_path / "a", schema=2)
    with pytest.raises(ArtefactError, match=r"artefact schema 2, this worldrl .* reads schema 1"):
        read_artefact(tmp_path / "a", kind="policy")


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".PKL"])
def test_pickles_are_refused_everywhere(tmp_path, suffix):
    name = f"pytorch_model{suffix}"
    with pytest.raises(ArtefactError, match="may run code"):
        make(tmp_path / "a", files={name: b""})
    make(tmp_path / "a")
    (tmp_path / "a" / name).write_bytes(b"")
    with pytest.raises(ArtefactError, match=rf"holds {name}, which may run code"):
        read_artefact(tmp_path / "a", kind="policy")
    with pytest.raises(ArtefactError, match="may run code"):
        read_artefact(tmp_path / "a" / name, kind="policy")


def test_a_pickle_named_safetensors_does_not_run(tmp_path):
    canary = tmp_path / "canary"
    make(tmp_path / "a")
    data = f"cos\nsystem\n(S'touch {canary}'\ntR.".encode()
    (tmp_path / "a" / "model.safetensors").write_bytes(data)
    edit_manifest(tmp_path / "a", files={"model.safetensors": data})
    with pytest.raises(ArtefactError, match="not a safetensors file"):
        read_artefact(tmp_path / "a", kind="policy")
    assert not canary.exists()


@pytest.mark.parametrize("key", ["_target_", "_partial_", "_args_"])
def test_config_that_names_code_is_refused_when_written_and_when_read(tmp_path, key):
    poison = {"model": [{"x": {key: "os.system"}}]}
    with pytest.raises(ArtefactError, match=f"key '{key}' names code to run"):
        make(tmp_path / "a", config=poison)
    make(tmp_path / "a")
    data = json.dumps({"schema": 1, "kind": "policy"} | poison).encode()
    (tmp_path / "a" / "config.json").write_bytes(data)
    edit_manifest(tmp_path / "a", files={"config.json": data})
    with pytest.raises(ArtefactError, match=rf"config.json.model\[0\].x: key '{key}' names code to run"):
        read_artefact(tmp_path / "a", kind="policy")


def test_config_rules(tmp_path):
    with pytest.raises(ArtefactError, match="interpolation"):
        make(tmp_path / "a", config={"token": "${oc.env:HOME}"})
    with pytest.raises(ArtefactError, match="may not have a key 'kind'"):
        make(tmp_path / "a", config={"kind": "x"})
    with pytest.raises(ArtefactError, match=r"config.lr: nan is not a finite number"):
        make(tmp_path / "a", config={"lr": float("nan")})
    with pytest.raises(ArtefactError, match=r"config.net: Linear is not a JSON value"):
        make(tmp_path / "a", config={"net": torch.nn.Linear(1, 1)})
    with pytest.raises(ArtefactError, match="exactly 'path' and 'hash'"):
        make(tmp_path / "a", parents=[{"path": "x"}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../evil", "", ".", "manifest.json", "link/evil"])
def test_names_must_stay_in_the_folder(tmp_path, name):
    make(tmp_path / "a")
    os.symlink(tmp_path, tmp_path / "a" / "link")
    if name != "link/evil":
        with pytest.raises(ArtefactError, match="must lie inside the folder"):
            make(tmp_path / "b", files={name: b"x"})
    edit_manifest(tmp_path / "a", files={name: b"x"})
    with pytest.raises(ArtefactError, match="must lie inside the folder"):
        read_artefact(tmp_path / "a", kind="policy")


def edit_manifest(folder: Path, files: dict[str, bytes] | None = None, **changes) -> None:
    """Forge a manifest whose digest is right, as an attacker would."""
    manifest = read_manifest(folder) | changes
    for name, data in (files or {}).items():
        manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    del manifest["digest"]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "digest": digest(manifest)}))


@pytest.mark.parametrize("error", [KeyError("width"), TypeError("width"), ValueError("width"), RuntimeError("width")])
def test_what_does_not_fit_this_version_names_its_folder(error):
    with (
        pytest.raises(ArtefactError, match=r"some/policy: .* do not fit this version: .*width"),
        fitting(Artefact(Path("some/policy"), "policy", {}, {}, {})),
    ):
        raise error


def test_an_error_that_is_already_reported_is_not_reported_twice():
    with (
        pytest.raises(ArtefactError, match=r"^statistics are missing$"),
        fitting(Artefact(Path("some/policy"), "policy", {}, {}, {})),
    ):
        raise ArtefactError("statistics are missing")
