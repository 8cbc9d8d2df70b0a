"""A caller that has gRPC and no Octavo code can find, call and stream the public API."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from end_to_end.prompts import expected, prompt_of
from service import Service

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Run isolated, with nothing but grpc and its reflection package.
SCRIPT = """
import json, sys
import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

address, prompt = sys.argv[1], json.loads(sys.argv[2])
with grpc.insecure_channel(address) as channel:
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(database)
    name = next(name for name in database.get_services() if name.endswith(".InferenceService"))
    methods = {method.name: method for method in pool.FindServiceByName(name).methods}

    def call(method, request):
        kind = methods[method]
        make = channel.unary_stream if kind.server_streaming else channel.unary_unary
        return make(
            f"/{name}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(kind.output_type).FromString,
        )(request, timeout=30)

    def new(method):
        return GetMessageClass(methods[method].input_type)()

    def fill(request):
        request.token_ids.ids.extend(prompt)
        request.sampling.max_tokens = 12
        request.sampling.temperature = 0.0
        request.sampling.ignore_eos = True
        return request

    models = list(call("ListModels", new("ListModels")).models)
    whole = call("Generate", fill(new("Generate")))
    streaming = new("StreamGenerate")
    fill(streaming.request)
    events, streamed, text = [], [], ""
    for response in call("StreamGenerate", streaming):
        events += [
            name for name in ("started", "finished", "completed") if response.HasField(name)
        ]
        streamed.extend(response.delta.token_ids)
        text += response.delta.text

assert not [module for module in sys.modules if module.split(".")[0] == "octavo"]
candidate = whole.candidates[0]
print(json.dumps({
    "models": models,
    "generated": list(candidate.token_ids),
    "text": candidate.text,
    "streamed": streamed,
    "streamed_text": text,
    "events": events,
    "reason": methods["Generate"].output_type.file.enum_types_by_name["FinishReason"]
        .values_by_number[candidate.finish_reason].name,
}))
"""


async def test_a_script_without_octavo_code_generates_and_streams(
    service: Service, llama: Path
) -> None:
    prompt = prompt_of(100, seed="reflection")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", SCRIPT, service.address, json.dumps(prompt)),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0
    said = json.loads(output)
    assert said["models"] == ["llama"]
    assert said["generated"] == said["streamed"] == expected(llama, prompt, 12)
    assert said["text"] == said["streamed_text"]
    assert said["events"] == ["started", "finished", "completed"]
    assert said["reason"] == "FINISH_REASON_LENGTH"
