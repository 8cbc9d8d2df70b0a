"""Where the tensors of a model folder are: one safetensors file, or shards with an index.

    model.safetensors                                    all tensors
    model.safetensors.index.json -> model-0000i-of-n     tensor name -> shard

Headers are read here without torch; `WeightFiles.load` maps a tensor into memory with it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.checkpoint.errors import CheckpointError
from octavo.checkpoint.fields import read_fields

if TYPE_CHECKING:
    import torch

GGUF_TYPES = "gguf_types"  # among a header's metadata: tensor name -> type, as JSON
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format


@dataclass(frozen=True, slots=True)
class TensorPlace:
    file: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors spells it: F32, BF16, ...
    gguf_type: str = ""  # what the values were in the GGUF file they come from, if not that dtype


class WeightFiles:
    """The tensors of one model folder by name.

    Raises:
        CheckpointError: no safetensors file, a file that is not one, or an index that names a
            tensor its shard does not hold.
    """

    def __init__(self, path: Path) -> None:
        self.files = weight_files(path)
        self.tensors: dict[str, TensorPlace] = {}
        for file in self.files:
            for name, place in _read_header(file).items():
                if name in self.tensors:
                    raise CheckpointError(
                        f"tensor {name} is in two files: {self.tensors[name].file} and {file}"
                    )
                self.tensors[name] = place
        self._check_index(path)
        self._open: dict[Path, Any] = {}

    def load(self, name: str) -> "torch.Tensor":
        """The tensor as stored, on the CPU, backed by the mapped file where torch can."""
        from safetensors import safe_open

        file = self.tensors[name].file
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        tensor: torch.Tensor = self._open[file].get_tensor(name)
        return tensor

    def close(self) -> None:
        """Unmap the files, as far as no loaded tensor still points into them."""
        self._open.clear()

    def _check_index(self, path: Path) -> None:
        if (path / SINGLE).exists():
            return
        for name, file in _weight_map(path).items():
            if name not in self.tensors or self.tensors[name].file.name != file:
                raise CheckpointError(f"{path / INDEX} places tensor {name} in {file}, not there")


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a model folder, in the order of their names."""
    if (path / SINGLE).exists():
        return [path / SINGLE]
    if not (path / INDEX).exists():
        raise CheckpointError(f"{path} has neither {SINGLE} nor {INDEX}; no other format is read")
    files = [path / name for name in sorted(set(_weight_map(path).values()))]
    for file in files:
        if file.parent != path or not file.exists():
            raise CheckpointError(f"{path / INDEX} names {file.name}, which does not exist")
    return files


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_fields(path / INDEX).nested("weight_map")
    if weight_map is None or not weight_map.values:
        raise CheckpointError(f"{path / INDEX} has no weight_map")
    return {name: weight_map.string(name) for name in weight_map.values}


def _read_header(file: Path) -> dict[str, TensorPlace]:
    """A safetensors file opens with its header's length (little-endian u64) and a JSON header."""
    with file.open("rb") as stream:
        num_bytes = int.from_bytes(stream.read(8), "little")
        if not 2 <= num_bytes <= MAX_HEADER_BYTES:
            raise CheckpointError(f"{file} is no safetensors file: header of {num_bytes} bytes")
        try:
            header = json.loads(stream.read(num_bytes))
            types = json.loads(header.get("__metadata__", {}).get(GGUF_TYPES, "{}"))
            places = {
                name: TensorPlace(file, tuple(entry["shape"]), entry["dtype"], types.get(name, ""))
                for name, entry in header.items()
                if name != "__metadata__"
            }
            ends = [header[name]["data_offsets"][1] for name in places]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{file} is no safetensors file: {error}") from error
    expected = 8 + num_bytes + max(ends, default=0)
    if file.stat().st_size != expected:
        raise CheckpointError(f"{file} has {file.stat().st_size} bytes, its header says {expected}")
    return places
