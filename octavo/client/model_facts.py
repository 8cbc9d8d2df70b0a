"""Static facts about a served model."""

from dataclasses import dataclass, field
from typing import Self

from octavo.inference.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What `get_model` tells."""

    model: str
    max_context_tokens: int  # prompt and output together
    vocab_size: int
    eos_token_ids: list[int]
    block_size: int
    default_sampling: dict[str, float | int]  # what fields left out mean for this model
    tool_call_format: str = ""  # "hermes", "llama3_json"; empty: tool calls stay text
    lora_adapters: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, message: pb.GetModelResponse) -> Self:
        scalars = message.default_sampling.ListFields()
        return cls(
            model=message.model,
            max_context_tokens=message.max_context_tokens,
            vocab_size=message.vocab_size,
            eos_token_ids=list(message.eos_token_ids),
            block_size=message.block_size,
            default_sampling={
                field.name: value for field, value in scalars if isinstance(value, int | float)
            },
            tool_call_format=message.tool_call_format,
            lora_adapters=list(message.lora_adapters),
        )
