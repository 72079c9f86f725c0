"""The HTTP server, apart from what it serves."""

import socket

from starlette.applications import Starlette

from servax_worker.http import HttpServer


def test_answers_are_sent_at_once():
    """Connections do not hold small pieces back until the caller has acknowledged others."""
    server = HttpServer(Starlette(), "127.0.0.1:0", 1.0)
    host, _, port = server.address.rpartition(":")
    listening = server._socket
    with listening, socket.create_connection((host, int(port))):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
