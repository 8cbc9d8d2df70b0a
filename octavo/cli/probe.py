"""`octavo probe`: asks a process for its health, where a kubelet cannot (it speaks no TLS).

Exit status 0: SERVING; 1: anything else, with the reason on standard error.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import grpc


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

    with _channel(address, tls_ca_file, tls_cert_file, tls_key_file, tls_name) as channel:
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


def _channel(
    address: str, ca: Path | None, cert: Path | None, key: Path | None, name: str | None
) -> "grpc.Channel":
    import grpc

    if ca is None:
        return grpc.insecure_channel(address)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=ca.read_bytes(),
        private_key=key.read_bytes() if key else None,
        certificate_chain=cert.read_bytes() if cert else None,
    )
    named = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(address, credentials, named)
