"""A bound socket for a server, or one message that says why there is none; and who may reach it."""

from __future__ import annotations

import atexit
import errno
import gc
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worldrl.core.errors import SettingError
from worldrl.core.extras import require
from worldrl.core.storage.log import console
from worldrl.policies.remote.packing import EXTRA
from worldrl.policies.remote.token import read_token
from worldrl.rollout.serving.server import Converse, Limits, SocketServer
from worldrl.settings import positive, setting


@dataclass(kw_only=True)
class Listening:
    """Where a server listens, who may reach it, and the device that it computes on."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(18080, "port; 0 takes a free one")
    exposed: bool = setting(False, "accept connections from other machines, with the token of token_file")
    token_file: str = setting("", "file with the token that clients must show; needed with exposed=true")
    clients: int = setting(8, "clients at once; further ones are refused")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")

    def __post_init__(self) -> None:
        """Check the ranges, and that nobody opens it to others unasked."""
        positive("clients", self.clients)
        if not 0 <= self.port < 65536:
            raise SettingError(f"port: must be in 0..65535, got {self.port}")
        check_door(self.host, self.exposed, self.token_file)


def check_door(host: str, exposed: bool, token_file: str) -> None:
    """SettingError for a server that other machines would reach unasked, or without a token."""
    if not exposed and not is_loopback(host):
        raise SettingError(
            f"host: other machines may reach {host!r}; keep host=127.0.0.1 and tunnel the port (ssh -L), or give exposed=true "
            "and token_file=FILE"
        )
    if exposed and not token_file:
        raise SettingError("exposed: without a token anyone could use this server; give token_file=FILE")


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


def open_server(settings: Listening, load: Callable[[], Converse]) -> SocketServer:
    """Bind the socket, and only then ``load`` what is served, which may take minutes.

    Raises SettingError (the port is in use, or the token's file is not as it must be) and what ``load`` raises.
    """
    token = read_token(Path(settings.token_file)) if settings.token_file else None
    require_serving()
    listening = listen(settings.host, settings.port)
    try:
        return SocketServer(load(), listening, token=token, limits=Limits(clients=settings.clients))
    except BaseException:
        listening.close()
        raise


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
    atexit.register(gc.freeze)  # the last collection of torch's modules would take most of a second
