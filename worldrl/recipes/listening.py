"""A bound socket for a server, or one message that says why there is none; and who may reach it."""

from __future__ import annotations

import errno
import ipaddress
import socket
from pathlib import Path

from worldrl.core.errors import SettingError
from worldrl.core.extras import require
from worldrl.core.storage.log import console
from worldrl.policies.remote.packing import EXTRA
from worldrl.policies.remote.token import read_token
from worldrl.rollout.serving.server import SocketServer

HOST = "address to listen on"
PORT = "port; 0 takes a free one"
EXPOSED = "accept connections from other machines, with the token of token_file"
TOKEN_FILE = "file with the token that clients must show; needed with exposed=true"
CLIENTS = "clients at once; further ones are refused"


def check_door(host: str, exposed: bool, token_file: str) -> None:
    """SettingError for a server that other machines would reach unasked, or without a token."""
    if not exposed and not is_loopback(host):
        raise SettingError(
            f"host: other machines may reach {host!r}; keep host=127.0.0.1 and tunnel the port (ssh -L), or give exposed=true "
            "and token_file=FILE"
        )
    if exposed and not token_file:
        raise SettingError("exposed: without a token anyone could use this server; give token_file=FILE")


def token_of(token_file: str) -> str | None:
    """The token in a file, None for no file; SettingError where there is none, or other users can read it."""
    return read_token(Path(token_file)) if token_file else None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; a name other than localhost counts as reached by others."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_serving() -> None:
    """MissingExtraError where a package of the servers is missing, before anything is loaded."""
    for package in ("msgpack", "websockets"):
        require(package, extra=EXTRA)


def listen(host: str, port: int) -> socket.socket:
    """Bind an address before anything is loaded, which may take minutes.

    Raises SettingError (another program has the port, or this machine does not have the address).
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise SettingError(
                f"port: {port} on {host} is in use by another program; port=0 takes a free one and prints it, or give another"
            ) from error
        raise SettingError(
            f"host, port: cannot listen on {host!r}, port {port} ({error}); give an address of this machine, for example "
            "host=127.0.0.1, and a port from 1024 on"
        ) from error


def serve(server: SocketServer, name: str) -> None:
    """Say where ``name`` is served, and serve it until Ctrl-C."""
    host, port = server.socket.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    console().print(f"serving {name} on ws://{shown}:{port}; Ctrl-C ends it", markup=False)
    server.serve_until_interrupted()
    console().print("closed")
