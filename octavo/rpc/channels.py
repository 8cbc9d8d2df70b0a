"""How our processes connect: sizes, and how soon a dead peer is noticed.

A peer is gone after KEEPALIVE_TIME + KEEPALIVE_TIMEOUT without a sign of life. A server must allow
pings that often, or it answers GOAWAY and every lease on the connection dies with it.
"""

import grpc

from octavo.rpc.tls import PEER_NAME, TlsFiles

KEEPALIVE_TIME_MS = 5_000
KEEPALIVE_TIMEOUT_MS = 2_000
MIN_PING_INTERVAL_MS = 2_000
CONNECT_TIMEOUT_MS = 5_000
PUBLIC_MESSAGE_BYTES = 16 << 20
INTERNAL_MESSAGE_BYTES = 8 << 20

_KEEPALIVE = [
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


def channel_options(max_message_bytes: int = INTERNAL_MESSAGE_BYTES) -> list[tuple[str, int]]:
    """Options of a client's side; each channel has a connection of its own."""
    return [
        *_KEEPALIVE,
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Its name misleads: this is how long one attempt may take. A busy machine needs its time.
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.enable_retries", 0),  # the router re-plans; the library must not
    ]


def server_options(
    max_message_bytes: int = INTERNAL_MESSAGE_BYTES, *, shares_port: bool = False
) -> list[tuple[str, int]]:
    """Options of a server's side. A taken port fails, unless all who have it share it."""
    return [
        *_KEEPALIVE,
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.so_reuseport", int(shares_port)),
    ]


def open_channel(address: str, tls: TlsFiles | None = None) -> grpc.aio.Channel:
    """A channel between our own processes; a unix socket is never encrypted.

    Raises:
        OSError: a certificate cannot be read.
    """
    options: list[tuple[str, int | str]] = [*channel_options()]
    if tls is None or address.startswith("unix:"):
        return grpc.aio.insecure_channel(address, options=options)
    options.append(("grpc.ssl_target_name_override", PEER_NAME))
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)
