"""How a client proves who it is, and how it knows whom it talks to."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from octavo.client.channel import OPTIONS, Option

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ClientTls:
    """An encrypted connection.

    ca_file: PEM of the CA that the service's certificate comes from; None for the system's.
    cert_file, key_file: the client's own certificate, where the service asks for one (mTLS).
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Raise OSError if a file cannot be read."""
        return grpc.ssl_channel_credentials(
            _read(self.ca_file), _read(self.key_file), _read(self.cert_file)
        )


def open_channel(address: str, tls: ClientTls | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(address, options=OPTIONS)
    return grpc.secure_channel(address, tls.channel_credentials(), options=OPTIONS)


def open_async_channel(
    address: str, tls: ClientTls | None, options: list[Option] = OPTIONS
) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


def key_metadata(api_key: str | None) -> Metadata:
    """What goes with every call.

    Raises:
        ValueError: the key holds what no header can.
    """
    if api_key is None:
        return ()
    if not (api_key.isascii() and api_key.isprintable()):
        raise ValueError("api_key must be printable ASCII, on one line")
    return (("authorization", f"Bearer {api_key}"),)


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
