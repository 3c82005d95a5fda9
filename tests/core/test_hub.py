"""Folders of the hub, with the real huggingface_hub against a hub on this machine."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.storage.artefact import artefact_hash, read_artefact, write_artefact
from worldrl.core.storage.hub import hub_folder, push_folder, with_hub_folders

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """``files`` maps a repository's name to the content of its files by their names; ``asked`` lists the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.asked, self.private = {}, [], {}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def answer(self, content=b"{}", code=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _handle(self):
        path = self.path.partition("?")[0]
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path))
        if path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked.get('organization', 'me')}/{asked['name']}"
            self.server.files.setdefault(name, {})
            self.server.private[name] = asked.get("visibility")
            return self.answer({"url": f"{self.server.url}/{name}"})
        parts = path.strip("/").split("/")
        if parts[0] == "api":
            return self.api("/".join(parts[2:4]), parts[4:], content)
        return self.file("/".join(parts[:2]), "/".join(parts[4:]))

    do_GET = do_HEAD = do_POST = _handle  # noqa: N815

    def missing(self, what):
        return self.answer({"error": what}, 404, X_Error_Code=what)

    def api(self, name, verb, content):
        if name not in self.server.files:
            return self.missing("RepoNotFound")
        files = self.server.files[name]
        if verb[0] == "preupload":
            wanted = json.loads(content)["files"]
            return self.answer(
                {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in wanted]}
            )
        if verb[0] == "commit":
            for line in map(json.loads, content.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return self.answer(
                {"success": True, "commitOid": COMMIT, "commitUrl": f"{self.server.url}/{name}/commit/{COMMIT}"}
            )
        if verb[0] in ("revision", "tree") and verb[1] not in ("main", COMMIT):
            return self.missing("RevisionNotFound")
        if verb[0] == "tree":
            return self.answer(
                [{"type": "file", "path": file, "size": len(data), "oid": _etag(data)} for file, data in files.items()]
            )
        return self.answer({"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]})

    def file(self, name, file):
        data = self.server.files[name].get(file)
        if data is None:
            return self.missing("EntryNotFound")
        return self.answer(data, X_Repo_Commit=COMMIT, ETag=f'"{_etag(data)}"')


def _etag(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@contextmanager
def hub():
    """Run it in a thread."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


@pytest.fixture
def server(tmp_path, monkeypatch):
    from huggingface_hub import constants

    with hub() as found:
        file = found.url + "/{repo_id}/resolve/{revision}/{filename}"
        changed = {"ENDPOINT": found.url, "HUGGINGFACE_CO_URL_TEMPLATE": file, "HF_HUB_CACHE": str(tmp_path / "hub")}
        for name, value in {**changed, "HF_HUB_OFFLINE": False}.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", "hf_token")
        yield found


@pytest.fixture
def artefact(tmp_path):
    folder = tmp_path / "made/policy"
    write_artefact(folder, kind="policy", config={"width": 4}, tensors={"weight": torch.arange(4.0)})
    return folder


def test_a_folder_comes_back_equal_and_only_data_travels(server, artefact):
    (artefact / "run.py").write_text("print()")
    page = push_folder(artefact, "me/policy", private=True, message="first")
    assert page.endswith(COMMIT)
    assert server.private == {"me/policy": "private"}
    assert set(server.files["me/policy"]) == {"config.json", "manifest.json", "model.safetensors"}
    found = hub_folder("hf://me/policy")
    assert (found / "model.safetensors").is_symlink()  # into the hub's cache
    assert artefact_hash(found) == artefact_hash(artefact)
    assert torch.equal(read_artefact(found, kind="policy").tensors["weight"], torch.arange(4.0))
    assert hub_folder(f"hf://me/policy@{COMMIT}") == found


def test_code_on_the_hub_is_not_downloaded(server, artefact):
    push_folder(artefact, "me/policy", private=False, message="first")
    server.files["me/policy"] |= {"setup.py": b"1", "weights.pt": b"1", "sub/model.bin": b"1"}
    found = hub_folder("hf://me/policy")
    assert {file.name for file in found.rglob("*")} == {"config.json", "manifest.json", "model.safetensors"}


def test_an_altered_file_is_found_when_the_folder_is_read(server, artefact):
    push_folder(artefact, "me/policy", private=False, message="first")
    server.files["me/policy"]["config.json"] = server.files["me/policy"]["config.json"].replace(b"4", b"5")
    with pytest.raises(ArtefactError, match="SHA-256"):
        read_artefact(hub_folder("hf://me/policy"), kind="policy")


def test_without_a_connection_the_cache_serves(server, artefact, monkeypatch):
    push_folder(artefact, "me/policy", private=False, message="first")
    found, asked = hub_folder("hf://me/policy"), len(server.asked)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_folder("hf://me/policy") == found
    assert len(server.asked) == asked
    with pytest.raises(ArtefactError, match=r"hf://me/other: not in the cache, and the hub was not reached"):
        hub_folder("hf://me/other")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("hf://me/nothing", ArtefactError, "not on the hub, or private"),
        ("hf://me/policy@v9", ArtefactError, "no such revision"),
        ("hf://policy", SettingError, "write hf://OWNER/NAME"),
        ("hf://../../etc", SettingError, "write hf://OWNER/NAME"),
    ],
)
def test_what_cannot_be_had_is_one_line(server, artefact, name, error, message):
    push_folder(artefact, "me/policy", private=False, message="first")
    with pytest.raises(error, match=message) as raised:
        hub_folder(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["policy", "me/policy@v1", "hf://me/policy", "a/b/c", ""])
def test_an_upload_needs_a_name_of_a_model(server, artefact, name):
    with pytest.raises(SettingError, match="OWNER/NAME"):
        push_folder(artefact, name, private=False, message="first")
    assert server.asked == []


def test_names_within_a_setting_become_folders(server, artefact):
    push_folder(artefact, "me/policy", private=False, message="first")
    found = hub_folder("hf://me/policy")
    assert with_hub_folders("[hf://me/policy,runs/a/policy]") == f"[{found},runs/a/policy]"
    assert with_hub_folders("runs/a/policy") == "runs/a/policy"


def test_a_link_out_of_the_cache_is_refused(server, artefact, tmp_path):
    push_folder(artefact, "me/policy", private=False, message="first")
    found = hub_folder("hf://me/policy")
    outside = tmp_path / "outside.json"
    outside.write_bytes((found / "config.json").read_bytes())
    (found / "config.json").unlink()
    (found / "config.json").symlink_to(outside)
    with pytest.raises(ArtefactError, match="must lie inside the folder"):
        read_artefact(found, kind="policy")


def test_a_command_takes_a_name_of_the_hub(server, artefact, tmp_path):
    push_folder(artefact, "me/policy", private=False, message="first")
    environment = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    command = [sys.executable, "-m", "worldrl", "card", "hf://me/policy"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (card,) = tmp_path.glob("home/hub/models--me--policy/snapshots/*/README.md")
    assert artefact_hash(artefact) in card.read_text()
