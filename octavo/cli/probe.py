"""`octavo probe`: asks a process for its health, where a kubelet cannot (it speaks no TLS).

Exit status 0: SERVING; 1: anything else, with the reason on standard error.
"""

from pathlib import Path
from typing import Annotated, Any

import typer


def probe(
    address: Annotated[str, typer.Option(help="host:port or unix:path.")],
    service: Annotated[str, typer.Option(help="A role's service, or nothing: liveness.")] = "",
    timeout_s: Annotated[float, typer.Option(help="Give up after this long.")] = 3.0,
    tls_ca_file: Annotated[
        Path | None, typer.Option(help="Who signed its certificate; without it no TLS is spoken.")
    ] = None,
    tls_name: Annotated[
        str | None, typer.Option(help="What its certificate names; default: the host.")
    ] = None,
    tls_cert_file: Annotated[
        Path | None, typer.Option(help="What to show it, if it asks for certificates.")
    ] = None,
    tls_key_file: Annotated[Path | None, typer.Option(help="The key of --tls-cert-file.")] = None,
) -> None:
    """Ask a router or a worker for its health: exit 0 if it is SERVING, else 1."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    if tls_ca_file is None:
        channel = grpc.insecure_channel(address)
    else:
        credentials = grpc.ssl_channel_credentials(
            root_certificates=tls_ca_file.read_bytes(),
            private_key=tls_key_file.read_bytes() if tls_key_file else None,
            certificate_chain=tls_cert_file.read_bytes() if tls_cert_file else None,
        )
        named = [("grpc.ssl_target_name_override", tls_name)] if tls_name else []
        channel = grpc.secure_channel(address, credentials, named)
    with channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            reply = stub.Check(request, timeout=timeout_s)
        except grpc.RpcError as error:
            typer.echo(f"{address}: {error.code().name}: {error.details()}", err=True)
            raise typer.Exit(1) from error
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
        typer.echo(f"{address} {service}: {name}", err=True)
        raise typer.Exit(1)
