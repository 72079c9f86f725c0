"""Addresses to listen on."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servax_worker.errors import StartupError


def listening_socket(address: str, *, shared: bool = False) -> socket.socket:
    """A TCP socket that listens on HOST:PORT; port 0 takes any that is free.

    Where it is `shared`, other processes of this user may listen there as well. Raises StartupError
    where the address is none, is taken, or is not this machine's.
    """
    family, place = _place(address)
    try:
        return socket.create_server(place, family=family, backlog=128, reuse_port=shared)
    except OSError as error:
        raise _cannot_listen(address, error) from error


@contextmanager
def kept_port(address: str) -> Iterator[str]:
    """Keeps HOST:PORT for processes of this user that listen there together; port 0 takes any.

    Gives the address with its port. Nobody listens there yet. Raises StartupError as
    `listening_socket` does.
    """
    with listening_socket(address) as probe:
        port: int = probe.getsockname()[1]
    host, _, _ = address.rpartition(":")
    address = f"{host}:{port}"
    family, place = _place(address)
    with socket.socket(family, socket.SOCK_STREAM) as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            keeper.bind(place)
        except OSError as error:
            raise _cannot_listen(address, error) from error
        yield address


def unix_socket(path: Path) -> socket.socket:
    """A socket that listens at a path, in place of what was left there.

    Raises StartupError where that is not possible, as at a path of more than a hundred bytes.
    """
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise StartupError(f"{_cannot_listen(str(path), error)}; set TMPDIR to another") from error
    listening.listen()
    return listening


def _place(address: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise StartupError(f"'{address}' is no address; give HOST:PORT, such as 127.0.0.1:8500")
    host = host.strip("[]")
    return socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port))


def _cannot_listen(address: str, error: OSError) -> StartupError:
    reason = (error.strerror or str(error)).split(" (while")[0]
    return StartupError(f"cannot listen on {address}: {reason}")
