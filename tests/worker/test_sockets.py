"""Addresses to listen on, some of them shared."""

import socket

import pytest

from servax_worker.errors import StartupError
from servax_worker.sockets import kept_port, listening_socket, unix_socket


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::1]"])
def test_a_kept_port_is_for_those_who_share_it(host):
    """Whoever shares the port listens there, beside others who do; nobody else does."""
    with kept_port(f"{host}:0") as address:
        assert not address.endswith(":0")
        with (
            listening_socket(address, shared=True) as one,
            listening_socket(address, shared=True) as other,
        ):
            assert one.getsockname() == other.getsockname()
            with pytest.raises(StartupError, match="cannot listen"):
                listening_socket(address)


def test_a_taken_port_cannot_be_kept():
    """Where somebody listens already, that is an error."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(StartupError, match=r"cannot listen on 127\.0\.0\.1"),
        kept_port(f"127.0.0.1:{taken.getsockname()[1]}"),
    ):
        pass


def test_a_path_that_is_too_long_is_told(tmp_path):
    """A path that is no address of a socket is an error with a remedy."""
    with pytest.raises(StartupError, match="set TMPDIR"):
        unix_socket(tmp_path / ("x" * 120))
