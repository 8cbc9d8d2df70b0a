"""Certificates: of a port that clients reach, and of the connections between our own processes.

    public port      cert + key, and a CA if clients must show a certificate, too
    between ours     one folder with tls.crt, tls.key and ca.crt: both sides show theirs (mTLS)

The folder's names are those of a Kubernetes TLS secret. Changed files are read again for the next
connection, so that certificates can be renewed without a restart.
"""

import logging
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path

import grpc

logger = logging.getLogger(__name__)

# Our processes reach each other by addresses that come and go; the certificates of all name this.
PEER_NAME = "octavo"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files; `ca` is whom the other side's certificate must come from, None for nobody.

    Raises:
        ValueError: one of them cannot be read.
    """

    cert: Path
    key: Path
    ca: Path | None = None

    def __post_init__(self) -> None:
        for path in self._paths:
            try:
                path.read_bytes()
            except OSError as error:
                raise ValueError(f"TLS needs {path}: {error.strerror}") from error

    @classmethod
    def in_folder(cls, folder: Path) -> "TlsFiles":
        """tls.crt, tls.key and ca.crt, as in a Kubernetes secret."""
        return cls(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")

    @property
    def _paths(self) -> list[Path]:
        return [self.cert, self.key] + ([self.ca] if self.ca else [])

    @property
    def state(self) -> tuple[int, ...]:
        """Changes with the files."""
        return tuple(path.stat().st_mtime_ns for path in self._paths)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of a port; with `ca`, clients must show a certificate.

        Raises:
            ValueError: the files hold no certificate and its key.
        """
        self._new_context()  # gRPC would only say that the port cannot be bound
        renewal = _Renewal(self)
        return grpc.dynamic_ssl_server_credentials(
            self.certificate(),
            renewal.changed,  # type: ignore[arg-type]  # None, while it is the old one, is allowed
            require_client_authentication=self.ca is not None,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Of a connection to one of our own processes, which must name PEER_NAME."""
        ca = self.ca.read_bytes() if self.ca else None
        return grpc.ssl_channel_credentials(ca, self.key.read_bytes(), self.cert.read_bytes())

    def ssl_context(self) -> ssl.SSLContext:
        """Of a port that speaks HTTP; with `ca`, clients must show a certificate.

        Raises:
            ValueError: the files hold no certificate and its key.
        """
        listening = newest = self._new_context()
        known = self.state

        def renew(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            """Called for each new connection, whether or not it names a server."""
            nonlocal newest, known
            try:
                state = self.state
                if state != known:
                    newest, known = self._new_context(), state
            except (OSError, ValueError) as error:  # between two writes
                logger.warning("certificate kept: %s", error)
            connection.context = newest

        listening.sni_callback = renew
        return listening

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key)
            if self.ca is not None:
                context.load_verify_locations(self.ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as error:
            raise ValueError(f"TLS cannot use {self.cert} and {self.key}: {error}") from error
        return context

    def certificate(self) -> grpc.ServerCertificateConfiguration:
        """The files as they are now."""
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_certificate_configuration(
            [pair], self.ca.read_bytes() if self.ca else None
        )


@dataclass(slots=True)
class _Renewal:
    """Looks at the files for each new connection, on a thread of gRPC's."""

    files: TlsFiles
    _known: tuple[int, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._known = self.files.state

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new certificate, None while it is the old one."""
        with self._lock:
            try:
                state = self.files.state
                if state == self._known:
                    return None
                renewed = self.files.certificate()
            except OSError as error:  # between two writes
                logger.warning("certificate kept: %s", error)
                return None
            self._known = state
            return renewed


def files_of(
    cert: Path | None, key: Path | None, ca: Path | None, prefix: str = "tls"
) -> TlsFiles | None:
    """The files of three settings; None where none is given.

    Raises:
        ValueError: some are missing, or cannot be read.
    """
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None:
        raise ValueError(f"{prefix}_cert_file and {prefix}_key_file go together")
    return TlsFiles(cert, key, ca)
