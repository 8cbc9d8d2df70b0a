"""`octavo top`: a live view of a running service, or one plain snapshot of it."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import grpc
import typer

from octavo.cli.connect import Address, ApiKey, CaFile, CertFile, KeyFile, Tls, client_tls
from octavo.cli.failure import advice, exit_with
from octavo.client import OctavoError

if TYPE_CHECKING:
    from rich.console import Console

    from octavo.top.source import Source

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 60.0


def top(
    address: Address = "127.0.0.1:50051",
    api_key: ApiKey = None,
    tls: Tls = False,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    interval: Annotated[
        float,
        typer.Option(min=MIN_INTERVAL_S, max=MAX_INTERVAL_S, help="Seconds between two looks."),
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one plain snapshot, as where no terminal is.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one snapshot with all counters as JSON.")
    ] = False,
) -> None:
    """Watch a running service: workers, KV blocks, cache hits, throughput, requests. q quits."""
    from rich.console import Console

    from octavo.top.source import Source

    async def run() -> None:
        console = Console(highlight=False)
        async with Source(
            address, api_key, client_tls(tls, ca_file, cert_file, key_file)
        ) as source:
            can_draw = console.is_terminal and not console.is_dumb_terminal
            if as_json or once or not can_draw:
                await _print_once(source, console, interval, as_json)
            else:
                await _watch(source, console, interval)

    try:
        asyncio.run(run())
    except OctavoError as error:
        raise exit_with(_advice(error, address)) from error
    except (OSError, ValueError) as error:
        raise exit_with(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _watch(source: "Source", console: "Console", interval_s: float) -> None:
    """Until q; raise OctavoError if the first look fails, which is a wrong address or key."""
    from octavo.top.history import History
    from octavo.top.live import LiveScreen

    history = History()
    history.add(await source.snapshot())
    await LiveScreen(source, history, console).run(interval_s)


async def _print_once(
    source: "Source", console: "Console", interval_s: float, as_json: bool
) -> None:
    """Two looks, since rates are differences."""
    from octavo.top.history import History
    from octavo.top.live import glyphs_of
    from octavo.top.plain import to_json
    from octavo.top.screen import Canvas, draw

    history = History()
    history.add(await source.snapshot())
    await asyncio.sleep(interval_s)
    history.add(await source.snapshot())
    if as_json:
        print(to_json(history, source.address))
    else:
        canvas = Canvas(console.width, None, glyphs_of(console))
        console.print(draw(history, canvas, source.address))


def _advice(error: OctavoError, address: str) -> str:
    if error.code is grpc.StatusCode.UNIMPLEMENTED:
        return f"{address} is a worker, or a router older than octavo top; name a newer router"
    if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer from {address}: see the log of its router, or of: octavo up"
    return advice(error, address)
