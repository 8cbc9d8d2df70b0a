"""`octavo probe`: asks a process for its health, where a kubelet cannot (it speaks no TLS).

Exit status 0: SERVING; 1: anything else, with the reason on standard error. It runs every few
seconds beside the process that it asks, so it imports gRPC and nothing else that takes time.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def probe(arguments: Sequence[str]) -> int:
    """Ask a router or a worker for its health; the exit status."""
    options = _parse(arguments)
    try:
        channel = _channel(options)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    with channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            request = health_pb2.HealthCheckRequest(service=options.service)
            reply = stub.Check(request, timeout=options.timeout_s)
        except grpc.RpcError as error:
            print(f"{options.address}: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
        print(f"{options.address} {options.service}: {name}", file=sys.stderr)
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="octavo probe",
        description="Ask a router or a worker for its health: exit 0 if it is SERVING, else 1.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--address", required=True, help="host:port or unix:path")
    add("--service", default="", help="a role's service, or nothing: liveness")
    add("--timeout-s", type=float, default=3.0, help="give up after this long (%(default)s)")
    add("--tls-ca-file", type=Path, help="who signed its certificate; without it no TLS is spoken")
    add("--tls-name", help="what its certificate names; default: the host")
    add("--tls-cert-file", type=Path, help="what to show it, if it asks for certificates")
    add("--tls-key-file", type=Path, help="the key of --tls-cert-file")
    return parser.parse_args(arguments)


def _channel(options: argparse.Namespace) -> grpc.Channel:
    if options.tls_ca_file is None:
        return grpc.insecure_channel(options.address)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=options.tls_ca_file.read_bytes(),
        private_key=options.tls_key_file.read_bytes() if options.tls_key_file else None,
        certificate_chain=options.tls_cert_file.read_bytes() if options.tls_cert_file else None,
    )
    named = [("grpc.ssl_target_name_override", options.tls_name)] if options.tls_name else []
    return grpc.secure_channel(options.address, credentials, named)
