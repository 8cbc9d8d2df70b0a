"""Several routers share the HTTP port as they share gRPC's, and nobody else gets it."""

from contextlib import AsyncExitStack

import httpx
import pytest

from octavo.router.config import RouterConfig
from octavo.router.model import ServedModel
from octavo.router.server import Router, running_router


async def test_routers_share_the_http_port_and_one_may_leave(served_model: ServedModel) -> None:
    def config(grpc_port: int, http_port: int, *, shares: bool = True) -> RouterConfig:
        return RouterConfig(
            model="tiny",
            listen_address=f"127.0.0.1:{grpc_port}",
            http_address=f"127.0.0.1:{http_port}",
            shares_port=shares,
        )

    async def has_answered(url: str) -> bool:
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            return (await client.get("/v1/models")).status_code == 200

    async with AsyncExitStack() as stack:
        staying = await stack.enter_async_context(running_router(config(0, 0), served_model))
        ports = (staying.port, _http_port(staying))
        url = f"http://127.0.0.1:{ports[1]}"
        async with running_router(config(*ports), served_model) as leaving:
            assert _http_port(leaving) == ports[1]
            assert all([await has_answered(url) for _ in range(4)])
        assert all([await has_answered(url) for _ in range(4)])
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{ports[1]}"):
            async with running_router(config(0, ports[1], shares=False), served_model):
                pass


def _http_port(router: Router) -> int:
    assert router.http is not None
    return router.http.port
