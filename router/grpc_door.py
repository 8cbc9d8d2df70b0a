"""A router's gRPC port: what clients may call there."""

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple

from octavo.inference.v1 import (
    adapter_pb2,
    adapter_pb2_grpc,
    fleet_pb2,
    fleet_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from octavo.router.adapter_servicer import AdapterServicer
from octavo.router.adapters import Adapters
from octavo.router.config import RouterConfig
from octavo.router.doors import open_door, with_port
from octavo.router.fleet import FleetServicer
from octavo.router.inference import Inference
from octavo.router.servicer import InferenceServicer
from octavo.rpc.api_keys import KeyRing
from octavo.rpc.channels import PUBLIC_MESSAGE_BYTES
from octavo.rpc.server import Server

logger = logging.getLogger(__name__)

SERVICE_NAME = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
ADAPTER_SERVICE_NAME = adapter_pb2.DESCRIPTOR.services_by_name["AdapterService"].full_name
FLEET_SERVICE_NAME = fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].full_name


class Services(NamedTuple):
    inference: Inference
    adapters: Adapters
    fleet: FleetServicer


async def open_grpc(
    config: RouterConfig,
    services: Services,
    keys: KeyRing | None,
    stack: AsyncExitStack,
) -> tuple[Server, str]:
    """The gRPC server, and where it listens.

    Raises:
        CannotListen: nowhere.
    """
    server = Server(
        (SERVICE_NAME, ADAPTER_SERVICE_NAME, FLEET_SERVICE_NAME),
        PUBLIC_MESSAGE_BYTES,
        shares_port=config.shares_port,
        keys=keys,
    )
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(
        InferenceServicer(services.inference, slow_reader_s=config.slow_reader_s), server.grpc
    )
    adapter_pb2_grpc.add_AdapterServiceServicer_to_server(
        AdapterServicer(services.adapters, config.lora_root), server.grpc
    )
    fleet_pb2_grpc.add_FleetServiceServicer_to_server(services.fleet, server.grpc)
    listen = partial(server.listen, tls=config.public_tls)
    address, port = open_door(config, config.listen_address, listen)
    if config.private_address is not None:
        server.listen(config.private_address)
    await server.begin()
    stack.push_async_callback(server.grpc.stop, 0)
    address = with_port(address, port)
    logger.info("serving %s on %s", services.inference.model.name, address)
    return server, address
