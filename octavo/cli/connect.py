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
Tls = Annotated[bool, typer.Option(envvar="OCTAVO_TLS", help="Encrypt; --ca-file implies it.")]
CaFile = Annotated[
    Path | None,
    typer.Option(envvar="OCTAVO_CA_FILE", help="PEM of the service's CA; default: the system's."),
]


def connect(address: str, api_key: str | None, tls: bool, ca_file: Path | None) -> Client:
    """A client, or the command's end with the reason."""
    try:
        return Client(address, api_key=api_key, tls=client_tls(tls, ca_file))
    except (OSError, ValueError) as error:
        raise exit_with(str(error)) from error


def client_tls(tls: bool, ca_file: Path | None) -> ClientTls | None:
    """What the options mean; None: not encrypted."""
    return ClientTls(ca_file) if tls or ca_file is not None else None
