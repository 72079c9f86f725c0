"""The HTTP server, apart from what it serves."""

import socket

from starlette.applications import Starlette

from servax_worker.http import HttpServer
from servax_worker.sockets import listening_socket


def test_answers_are_sent_at_once():
    """Connections do not hold small pieces back until the caller has acknowledged others."""
    listening = listening_socket("127.0.0.1:0")
    HttpServer(Starlette(), listening, 1.0)
    with listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
