"""A bound socket for a server, or one message that says why there is none."""

from __future__ import annotations

import errno
import socket

from worldrl.core.errors import SettingError


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
