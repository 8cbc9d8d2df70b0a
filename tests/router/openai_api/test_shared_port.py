"""Several routers share the HTTP port as they share gRPC's, and nobody else gets it."""

from contextlib import AsyncExitStack

import httpx
import pytest

from octavo.router.config import RouterConfig
from octavo.router.model import ServedModel
from octavo.router.server import Router, running_router

FREE = "127.0.0.1:0"


async def test_routers_share_the_http_port_and_one_may_leave(served_model: ServedModel) -> None:
    def config(address: str, http_address: str, *, shares: bool = True) -> RouterConfig:
        return RouterConfig(
            model="tiny",
            listen_address=address,
            http_address=http_address,
            shares_port=shares,
        )

    async def has_answered(url: str) -> bool:
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            return (await client.get("/v1/models")).status_code == 200

    async with AsyncExitStack() as stack:
        staying = await stack.enter_async_context(running_router(config(FREE, FREE), served_model))
        http_address = _http_address(staying)
        url = f"http://{http_address}"
        async with running_router(config(staying.address, http_address), served_model) as leaving:
            assert _http_address(leaving) == http_address
            assert all([await has_answered(url) for _ in range(4)])
        assert all([await has_answered(url) for _ in range(4)])
        with pytest.raises(OSError, match=f"cannot listen at {http_address}"):
            async with running_router(config(FREE, http_address, shares=False), served_model):
                pass


def _http_address(router: Router) -> str:
    assert router.http is not None
    return router.http.address
