"""Clients of a running service, thin over the generated stubs; no torch.

with Client("127.0.0.1:50051") as client:
    print(client.generate("What is a paged KV cache?", max_tokens=64).text)
"""

from octavo.client.adapter import Adapter
from octavo.client.async_client import AsyncClient, AsyncTextStream
from octavo.client.client import Client, TextStream
from octavo.client.completion import Candidate, Completion, Delta, FinishReason, Timing, Usage
from octavo.client.credentials import ClientTls
from octavo.client.error import OctavoError
from octavo.client.model_facts import ModelFacts
from octavo.client.request import Prompt, RequestFields
from octavo.client.tool_call import ToolCall
from octavo.token_logprobs import TokenLogprob, TokenLogprobs

__all__ = [
    "Adapter",
    "AsyncClient",
    "AsyncTextStream",
    "Candidate",
    "Client",
    "ClientTls",
    "Completion",
    "Delta",
    "FinishReason",
    "ModelFacts",
    "OctavoError",
    "Prompt",
    "RequestFields",
    "TextStream",
    "Timing",
    "ToolCall",
    "TokenLogprob",
    "TokenLogprobs",
    "Usage",
]
