"""docs/chat_and_tools.md names every field of a chat."""

from pathlib import Path

import pytest

from octavo.inference.v1 import inference_pb2 as pb
from octavo.text.tool_calls import AUTO, FORMATS, NONE

PAGE = (Path(__file__).parent.parent / "docs" / "chat_and_tools.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("message", [pb.ChatMessages, pb.ChatMessage, pb.Tool])
def test_every_field_of_a_chat_is_named(message: type) -> None:
    for field in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]
        assert f"`{field.name}`" in PAGE or f".{field.name}`" in PAGE, field.name


def test_every_format_is_named() -> None:
    assert all(f"`{name}`" in PAGE for name in (*FORMATS, NONE)) and AUTO in PAGE
