"""What a command says when a call fails: the reason, and what to do next."""

import grpc
import typer
from rich.console import Console
from rich.markup import escape

from octavo.client import OctavoError


def advice(error: OctavoError, address: str) -> str:
    """One or two sentences for a person at a terminal."""
    code = error.code
    if code is grpc.StatusCode.UNAVAILABLE and not error.is_from_service:
        return f"no service at {address}, or it went away; start one with: octavo up"
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"{error.message}; see the log of: octavo up"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer within the time limit; raise --timeout-s"
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        wait = "later" if error.retry_after_s is None else f"in {error.retry_after_s:g} s"
        return f"{error.message}; the service is busy, try again {wait}"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return f"{error.message}; give --api-key, or OCTAVO_API_KEY"
    if code is grpc.StatusCode.INTERNAL:
        return f"{error.message}; see the log of: octavo up"
    if "chat template" in error.message:
        return f"{error.message}; without a chat: octavo generate --raw"
    return error.message


def exit_with(message: str) -> typer.Exit:
    """Print an error; raise what is returned."""
    console = Console(stderr=True)
    console.print(f"[red]octavo:[/] {escape(message)}", highlight=False, soft_wrap=True)
    return typer.Exit(1)
