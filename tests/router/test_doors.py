"""Two want one address: whoever listens first has it, the other goes elsewhere or says why."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from octavo.router.config import RouterConfig
from octavo.router.model import ServedModel
from octavo.router.server import Router, running_router
from octavo.rpc.listening import CannotListen, first_to_share, open_listener
from service import free_address


def addresses_in(file: Path) -> tuple[str, str]:
    written = json.loads(file.read_text())
    return written["grpc"], written["http"]


@pytest.mark.parametrize("shares_port", [False, True], ids=["alone", "first of several"])
async def test_the_second_takes_a_free_port_and_says_which(
    served_model: ServedModel, tmp_path: Path, shares_port: bool
) -> None:
    wanted, wanted_http = free_address(), free_address()
    config = RouterConfig(
        model="tiny",
        listen_address=f"{wanted},127.0.0.1:0",
        http_address=f"{wanted_http},127.0.0.1:0",
        shares_port=shares_port,
    )
    async with AsyncExitStack() as stack:

        async def start(name: str) -> tuple[str, str]:
            file = tmp_path / name
            running = running_router(replace(config, address_file=file), served_model)
            router: Router = await stack.enter_async_context(running)
            assert router.http is not None
            assert addresses_in(file) == (router.address, router.http.address)
            return addresses_in(file)

        first, second = await start("first"), await start("second")
        assert first == (wanted, wanted_http)
        assert not set(first) & set(second)
        asked_for = replace(config, listen_address=wanted, address_file=tmp_path / "third")
        with pytest.raises(CannotListen, match=f"cannot listen at {wanted}: .*another address"):
            await stack.enter_async_context(running_router(asked_for, served_model))


@pytest.mark.parametrize("shares_port", [False, True], ids=["alone", "first of several"])
def test_of_two_that_listen_at_the_same_moment_one_gets_the_port(shares_port: bool) -> None:
    barrier = Barrier(2)
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:

        def listen(address: str) -> bool:
            barrier.wait(10)
            try:
                if not shares_port:
                    stack.enter_context(open_listener(address, shares_port=False))
                    return True
                with first_to_share(address):
                    stack.enter_context(open_listener(address, shares_port=True))
                    return True
            except CannotListen:
                return False

        for _ in range(50):
            assert sorted(threads.map(listen, [free_address()] * 2)) == [False, True]
