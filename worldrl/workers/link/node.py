"""What runs on a node of a cluster: a check of what the node has, and the start of a worker there.

This file travels to the node by its content and needs the standard library only, so that a node without worldrl, or
with another one, can say so. The worker itself is started from the node's own worldrl (``boot.py``).

::

    driver: listens ◄──TCP── node: token [32] | length [4] | JSON {"pid", "paths"}  then messages of link/channel.py
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TOKEN_BYTES = 32
LENGTH = "<I"
CONNECT_S = 30.0
PACKAGES = ("torch", "numpy", "mujoco", "gymnasium")
"""Packages of an episode of the embedded suite; another version may give other bits."""


def package_folder() -> Path | None:
    """Folder of this Python's worldrl; None without one."""
    found = importlib.util.find_spec("worldrl")
    return None if found is None or found.origin is None else Path(found.origin).parent


def code_digest() -> str:
    """Digest of the code of worldrl and its environments, by content; "none" without them."""
    digest, specs = hashlib.sha256(), map(importlib.util.find_spec, ("worldrl", "worldrl_envs"))
    folders = [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin is not None]
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16] if folders else "none"


def installed(package: str) -> str:
    """Version of a package in this Python, "none" without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def describe() -> dict[str, str]:
    """What must be equal on every node: Python, worldrl's code, and the packages that decide an episode's bits."""
    return {
        "Python": ".".join(map(str, sys.version_info[:2])),
        "worldrl": code_digest(),
        **{name: installed(name) for name in PACKAGES},
    }


def content_digest(path: Path) -> str:
    """Digest of a file, or of a folder's files with their names."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            own = hashlib.file_digest(content, "sha256").hexdigest()
        digest.update(f"{'' if file == path else file.relative_to(path).as_posix()}\0{own}\n".encode())
    return digest.hexdigest()


def lacks(order: Mapping[str, Any]) -> list[str]:
    """What this node lacks for an order, each with the command that mends it."""
    found, name = [], f"node {socket.gethostname()}"
    if order["shared"]:
        here = describe()
        for part, wanted in order["versions"].items():
            if here[part] != wanted:
                found.append(f"{name} has {part} {here[part]}, the driver {wanted}; {_mend(part, wanted)}")
    found += [f"{name} lacks {path}; {order['mend']}" for path in order["paths"] if not os.path.exists(path)]
    return found


def _mend(name: str, wanted: str) -> str:
    if name == "Python":
        return f"start its `ray start` with Python {wanted}"
    if name == "worldrl":
        return "install the same commit there: git pull && pip install -c constraints.txt -e '.[ray]'"
    return f"run there: pip install {name}=={wanted}"


def take_copy(path: str, digest: str, files: Callable[[], Mapping[str, bytes]], store: Path) -> str:
    """The path itself where it is visible with this content, else a copy in the node's store, made once."""
    if os.path.exists(path) and content_digest(Path(path)) == digest:
        return path
    copy = store / digest / Path(path).name
    if not (copy.exists() and content_digest(copy) == digest):
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = Path(tempfile.mkdtemp(dir=store))
        for name, content in files().items():
            file = unfinished / copy.name / name if name else unfinished / copy.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        try:
            unfinished.rename(store / digest)
        except OSError:  # another worker of this node was first, or the copy there was damaged
            if not (copy.exists() and content_digest(copy) == digest):
                shutil.rmtree(store / digest)
                unfinished.rename(store / digest)
        shutil.rmtree(unfinished, ignore_errors=True)
    return str(copy)


def environment(order: Mapping[str, Any]) -> dict[str, str]:
    """The worker's environment variables: this node's, and what the driver adds or hides."""
    kept = {name: value for name, value in os.environ.items() if name not in order["hidden"]}
    variables = {**kept, **order["variables"]}
    if order["shared"]:
        own = [entry for entry in map(os.path.abspath, sys.path) if entry]
        variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*order["python_path"], *own]))
    return variables


class Starter:
    """Starts one worker on its node, and waits for its end; an actor of Ray."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the actor)

    def run(self, order: Mapping[str, Any], fetch: Callable[[Any], Any], copies: Sequence[Any]) -> dict[str, Any]:
        """Start the worker of an order; returns how it ended, or why this node cannot start it.

        ``copies`` are ``[path, digest, reference]`` of what the worker reads; ``fetch`` gives a reference's files.
        """
        if found := lacks(order):
            return {"refused": found[0]}
        store = Path(order["store"] or tempfile.gettempdir()) / f"worldrl-files-{os.getuid()}"
        local = {path: take_copy(path, digest, lambda ref=ref: fetch(ref)[0], store) for path, digest, ref in copies}
        end = socket.create_connection((order["host"], order["port"]), CONNECT_S)
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            process = self._process(order, end)
        except OSError as error:
            return {"refused": f"node {socket.gethostname()} cannot start {order['python']} ({error.strerror})"}
        head = json.dumps({"pid": process.pid, "paths": local}).encode()
        end.sendall(bytes.fromhex(order["token"]) + struct.pack(LENGTH, len(head)) + head)
        end.close()  # only the worker may hold it, or its death would not end the connection
        code = process.wait()
        return {"code": code, "printed": self.printed()}

    def _process(self, order: Mapping[str, Any], end: socket.socket) -> subprocess.Popen[bytes]:
        folder = package_folder()
        boot = order["boot"] if folder is None else folder / "workers" / "link" / "boot.py"
        python = sys.executable if order["shared"] else order["python"]
        command = [python, order["flag"], str(boot), "link.server", str(end.fileno()), order["target"]]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=[end.fileno()],
            env=environment(order),
        )

    def printed(self) -> str:
        """The end of the worker's output."""
        self._log.flush()
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4096))
        return self._log.read().decode(errors="replace")
