"""docs/request_fields.md lists every field of the API, with the defaults that hold."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

from octavo.inference.v1 import inference_pb2
from octavo.sampling_params import SamplingParams

PAGE = Path(__file__).parent.parent / "docs" / "request_fields.md"


def rows() -> dict[str, list[str]]:
    """Field name to the other cells of its row."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| `"):
            continue
        name, *others = [cell.strip() for cell in line.strip("|").split("|")]
        for field in re.findall(r"`(\w+)`", name):
            found[field] = others
    return found


def test_every_field_has_a_row_and_every_row_is_a_field() -> None:
    names = {
        field.name
        for message in ("GenerateRequest", "SamplingParams", "BeamSearch", "OutputOptions")
        for field in getattr(inference_pb2, message).DESCRIPTOR.fields
    }
    assert rows().keys() == names


def test_defaults_are_those_of_the_code() -> None:
    checked = 0
    for field in fields(SamplingParams):
        default, _, _ = rows()[field.name]
        if isinstance(field.default, bool):
            assert default == str(field.default).lower(), field.name
            checked += 1
        elif isinstance(field.default, int | float):
            assert default.split(",")[0] == f"{field.default:g}", field.name
            checked += 1
        elif field.name != "seed":
            assert default.split()[0] == "none" and field.default in ((), None, MISSING)
            checked += 1
    assert checked > 15
