"""`octavo router | prefill-worker | decode-worker`: one role each, every setting an option."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import typer

from octavo.cli.failure import exit_with
from octavo.cli.options import command_for
from octavo.decode_worker.config import DecodeConfig
from octavo.engine.errors import NoGpu
from octavo.logs import log_to_stderr
from octavo.prefill_worker.config import PrefillConfig
from octavo.router.config import RouterConfig
from octavo.rpc.listening import CannotListen
from octavo.stacks import show_stacks_on_signal


def run(serving: Coroutine[Any, Any, None]) -> None:
    """Serve until the end; an address or a GPU that cannot be had is the user's to change."""
    try:
        asyncio.run(_serve(serving))
    except (CannotListen, NoGpu) as error:
        raise exit_with(str(error)) from error


async def _serve(serving: Coroutine[Any, Any, None]) -> None:
    show_stacks_on_signal()
    await serving


def run_router(config: RouterConfig) -> None:
    """Take requests and send each to a prefill and a decode worker."""
    from octavo.router.server import serve

    log_to_stderr(config.log_level, config.log_format)
    run(serve(config))


def run_prefill_worker(config: PrefillConfig) -> None:
    """Compute prompts and hand their KV to decode workers."""
    from octavo.prefill_worker.server import serve

    log_to_stderr(config.log_level, config.log_format)
    run(serve(config))


def run_decode_worker(config: DecodeConfig) -> None:
    """Pull prompts' KV and decode in one running batch."""
    from octavo.decode_worker.server import serve

    log_to_stderr(config.log_level, config.log_format)
    run(serve(config))


def register(app: typer.Typer) -> None:
    """Add the three commands."""
    app.command("router")(command_for(RouterConfig, run_router))
    app.command("prefill-worker")(command_for(PrefillConfig, run_prefill_worker))
    app.command("decode-worker")(command_for(DecodeConfig, run_decode_worker))
