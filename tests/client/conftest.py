from collections.abc import AsyncIterator

import pytest

from client.scripted_service import ScriptedService, scripted_service


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    async with scripted_service() as service:
        yield service
