"""How a client connects: what is tried again, how large a message may be, when a peer is gone."""

import json

from octavo.rpc.channels import PUBLIC_MESSAGE_BYTES

# Only what failed before its first message is tried again; what was refused for load is not.
# CANCELLED, where the caller did not cancel, is gRPC's word for a call that came while a router's
# server was closing: it reset the call before any of our code saw it.
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{"service": "octavo.inference.v1.InferenceService"}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
            },
        }
    ],
    "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
}

Option = tuple[str, int | str]

OPTIONS: list[Option] = [
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    ("grpc.enable_retries", 1),
    # A long prefill sends nothing: pings tell a busy service from a lost one.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", PUBLIC_MESSAGE_BYTES),
    ("grpc.max_send_message_length", PUBLIC_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
