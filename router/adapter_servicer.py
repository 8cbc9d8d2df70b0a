"""AdapterService: message in, the fleet's adapters, message out."""

import os.path

import grpc

from octavo.checkpoint.adapter_config import check_adapter_name
from octavo.inference.v1 import adapter_pb2, adapter_pb2_grpc
from octavo.router.adapter import AdapterFacts
from octavo.router.adapters import Adapters
from octavo.router.worker import Role, Worker
from octavo.rpc.errors import InvalidRequest, Precondition, errors_to_status

LoadContext = grpc.aio.ServicerContext[
    adapter_pb2.LoadAdapterRequest, adapter_pb2.LoadAdapterResponse
]
UnloadContext = grpc.aio.ServicerContext[
    adapter_pb2.UnloadAdapterRequest, adapter_pb2.UnloadAdapterResponse
]
ListContext = grpc.aio.ServicerContext[
    adapter_pb2.ListAdaptersRequest, adapter_pb2.ListAdaptersResponse
]
GetContext = grpc.aio.ServicerContext[adapter_pb2.GetAdapterRequest, adapter_pb2.GetAdapterResponse]


class AdapterServicer(adapter_pb2_grpc.AdapterServiceServicer):
    """Serves the adapters of one router's workers."""

    def __init__(self, adapters: Adapters, root: str | None) -> None:
        """root: where adapters may be loaded from; None: nothing is loaded or unloaded."""
        self._adapters = adapters
        self._root = None if root is None else os.path.abspath(root)

    async def LoadAdapter(
        self, request: adapter_pb2.LoadAdapterRequest, context: LoadContext
    ) -> adapter_pb2.LoadAdapterResponse:
        response = adapter_pb2.LoadAdapterResponse()
        async with errors_to_status(context):
            path = path_below(self._allowed_root(), request.path)
            try:
                check_adapter_name(request.name)
            except ValueError as error:
                raise InvalidRequest("name", str(error)) from error
            facts = await self._adapters.load(request.name, path)
            response.adapter.CopyFrom(_adapter(facts, self._adapters.all().get(facts, [])))
        return response

    async def UnloadAdapter(
        self, request: adapter_pb2.UnloadAdapterRequest, context: UnloadContext
    ) -> adapter_pb2.UnloadAdapterResponse:
        async with errors_to_status(context):
            self._allowed_root()
            await self._adapters.unload(request.name)
        return adapter_pb2.UnloadAdapterResponse()

    async def ListAdapters(
        self, request: adapter_pb2.ListAdaptersRequest, context: ListContext
    ) -> adapter_pb2.ListAdaptersResponse:
        response = adapter_pb2.ListAdaptersResponse()
        async with errors_to_status(context):
            found = self._adapters.all()
            response.adapters.extend(_adapter(facts, workers) for facts, workers in found.items())
        return response

    async def GetAdapter(
        self, request: adapter_pb2.GetAdapterRequest, context: GetContext
    ) -> adapter_pb2.GetAdapterResponse:
        response = adapter_pb2.GetAdapterResponse()
        async with errors_to_status(context):
            facts = self._adapters.find(request.name, field="name")
            response.adapter.CopyFrom(_adapter(facts, self._adapters.all()[facts]))
        return response

    def _allowed_root(self) -> str:
        if self._root is None:
            raise Precondition(
                "lora_root",
                "this router loads and unloads no adapters; start router and workers with "
                "--lora-root FOLDER",
            )
        return self._root


def path_below(root: str, path: str) -> str:
    """`path` relative to root, as text: the workers have the files, and follow their links.

    Raises:
        InvalidRequest: it lies elsewhere.
    """
    relative = os.path.relpath(os.path.join(root, path), root)
    if not path or relative.split(os.sep)[0] in (os.curdir, os.pardir):
        raise InvalidRequest("path", "path must lie below --lora-root")
    return relative


def _adapter(facts: AdapterFacts, workers: list[Worker]) -> adapter_pb2.Adapter:
    roles = [worker.facts.role for worker in workers]
    return adapter_pb2.Adapter(
        name=facts.name,
        fingerprint=facts.fingerprint,
        rank=facts.rank,
        prefill_workers=roles.count(Role.PREFILL),
        decode_workers=roles.count(Role.DECODE),
    )
