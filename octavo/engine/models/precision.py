"""How the weights of each product are kept: as dtype says, in int8 or in int4.

quantization   layers                                     head
None           dtype                                      dtype
int8           int8                                       int8
int4           int4                                       int8: it is read once a step, and its
                                                          errors reach the choice directly
gguf           Q8_0: int8; Q4_0, Q4_1: int4; else dtype   likewise
"""

from dataclasses import dataclass

from octavo.checkpoint.weights import WeightFiles
from octavo.kernels.select import UnsupportedQuantization

GGUF_TYPES = {"Q8_0": "int8", "Q4_0": "int4", "Q4_1": "int4"}


@dataclass(frozen=True, slots=True)
class Precisions:
    """The rule for one checkpoint.

    Raises:
        UnsupportedQuantization: gguf is asked of a checkpoint that has no such tensors.
    """

    quantization: str | None
    files: WeightFiles

    def __post_init__(self) -> None:
        types = {place.gguf_type for place in self.files.tensors.values()}
        if self.quantization == "gguf" and not types & GGUF_TYPES.keys():
            raise UnsupportedQuantization(
                f"quantization gguf needs a GGUF file with {', '.join(GGUF_TYPES)} tensors"
            )

    def of(self, names: list[str]) -> str | None:
        """The precision of a layer's product, made of the tensors of these names."""
        if self.quantization != "gguf":
            return self.quantization
        found = {GGUF_TYPES.get(self.files.tensors[name].gguf_type) for name in names}
        if found == {"int8", "int4"}:
            return "int8"  # holds 4-bit values with a far smaller error than theirs
        return found.pop() if len(found) == 1 else None

    def of_head(self, name: str) -> str | None:
        return "int8" if self.quantization == "int4" else self.of([name])
