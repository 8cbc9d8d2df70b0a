"""The port that Prometheus reads: HTTP on a thread of its own, GET and nothing else.

Reading takes no lock that a request could wait for. With certificates the port speaks TLS, and
renewed ones count for the next connection.
"""

import logging
import socket
import socketserver
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from octavo.metrics.registry import PLAIN_TEXT
from octavo.rpc.exposure import is_local
from octavo.rpc.listening import write_whole
from octavo.rpc.tls import TlsFiles

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

# A reader that says nothing for so long is dropped.
READ_TIMEOUT_S = 10
# The port closes within so long; its block ends no sooner.
CLOSE_S = 0.1


@contextmanager
def running_metrics(
    registry: CollectorRegistry,
    address: str,
    tls: TlsFiles | None = None,
    address_file: Path | None = None,
) -> Iterator[int]:
    """Serve inside the block; yields the port.

    address: host:port, as "127.0.0.1:9464" or "[::]:9464"; port 0 takes a free one.
    address_file: is to tell where that is.

    Raises:
        OSError: naming the address, which cannot be bound.
        ValueError: the files of `tls` cannot be used.
    """
    server = _listen(registry, address)
    address = f"{address.rpartition(':')[0]}:{server.server_port}"
    if tls is None and not is_local(address):
        logger.warning("metrics at %s are open to the network without encryption", address)
    if tls is not None:
        # The handshake is the reader's thread's: one that never ends holds up nobody else.
        server.socket = tls.ssl_context().wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    threading.Thread(
        target=server.serve_forever, args=(CLOSE_S,), name="metrics", daemon=True
    ).start()
    logger.info("metrics at %s", address)
    try:
        if address_file is not None:
            write_whole(address_file, address)
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _listen(registry: CollectorRegistry, address: str) -> "_Server":
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    kind = _ServerOverIpv6 if ":" in host else _Server
    try:
        return make_server(host, int(port), _app(registry), kind, _Handler)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot serve metrics at {address}: {error.strerror}"
        ) from error


def _app(registry: CollectorRegistry) -> "WSGIApplication":
    app = make_wsgi_app(registry)

    def in_plain_text(
        environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        environ["HTTP_ACCEPT"] = PLAIN_TEXT
        answer: Iterable[bytes] = app(environ, start_response)
        return answer

    return in_plain_text


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without the look-up of the host's name in DNS that http.server makes."""
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that left, or never spoke TLS."""
        logger.debug("a reader of metrics failed", exc_info=True)


class _ServerOverIpv6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = READ_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: it would be a line every few seconds."""
