"""The options by which a command reaches a service."""

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.failure import exit_with
from octavo.client import Client, ClientTls

Address = Annotated[str, typer.Option(envvar="OCTAVO_ADDRESS", help="Where the service listens.")]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="OCTAVO_API_KEY", help="Where the service asks for one.", metavar="KEY"),
]
Tls = Annotated[bool, typer.Option(envvar="OCTAVO_TLS", help="Encrypt; a file below implies it.")]
CaFile = Annotated[
    Path | None,
    typer.Option(envvar="OCTAVO_CA_FILE", help="PEM of the service's CA; default: the system's."),
]

CertFile = Annotated[
    Path | None,
    typer.Option(envvar="OCTAVO_CERT_FILE", help="PEM to show a service that asks clients for it."),
]
KeyFile = Annotated[
    Path | None, typer.Option(envvar="OCTAVO_KEY_FILE", help="PEM key of --cert-file.")
]


def connect(address: str, api_key: str | None, tls: ClientTls | None) -> Client:
    """A client, or the command's end with the reason."""
    try:
        return Client(address, api_key=api_key, tls=tls)
    except (OSError, ValueError) as error:
        raise exit_with(str(error)) from error


def client_tls(
    tls: bool, ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> ClientTls | None:
    """What the options mean, None: not encrypted; or the command's end with the reason."""
    if (cert_file is None) != (key_file is None):
        raise exit_with("--cert-file and --key-file go together")
    if not tls and ca_file is None and cert_file is None:
        return None
    return ClientTls(ca_file, cert_file, key_file)
