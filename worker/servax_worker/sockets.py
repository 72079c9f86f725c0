"""Addresses to listen on."""

import socket

from servax_worker.errors import StartupError


def listening_socket(address: str) -> socket.socket:
    """A TCP socket that listens on HOST:PORT; port 0 takes any that is free.

    Raises StartupError where the address is none, is taken, or is not this machine's.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise StartupError(f"'{address}' is no address; give HOST:PORT, such as 127.0.0.1:8500")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).split(" (while")[0]
        raise StartupError(f"cannot listen on {address}: {reason}") from error
