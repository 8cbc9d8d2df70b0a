"""The tensor that holds every block of KV, and its bytes for those who move blocks.

    kv[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]
       |<------------- one block: one contiguous span of bytes ------------>|

On the CPU a block is read in place. On a GPU it passes through one pinned buffer, on a stream of
its own; what it reads was finished by the step that announced it.
"""

import math
import sys
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from octavo.block_key import KEY_ALGORITHM
from octavo.engine.host_memory import HUGE_PAGE, zeros
from octavo.engine.pages_ahead import PagesAhead

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
FP8 = "float8_e4m3fn"
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Two engines may exchange blocks only if every field is equal."""

    dtype: str  # a key of DTYPE_BYTES
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    model_fingerprint: str
    key_algorithm: str = KEY_ALGORITHM
    quantization: str = ""  # of the weights: their KV differs from what others compute

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.num_layers, 2, self.num_kv_heads, self.block_size, self.head_dim)

    @property
    def block_bytes(self) -> int:
        return math.prod(self.block_shape) * DTYPE_BYTES[self.dtype]

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch_dtype(self.dtype)


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


class KVCache:
    """Owns the pool's tensor; which block belongs to whom is BlockPool's business."""

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        # Zeros, so that what a kernel reads and masks is never NaN; the CPU maps them lazily.
        shape = (num_blocks, *layout.block_shape)
        if device.type == "cpu":
            self.kv = zeros(shape, layout.torch_dtype)
        else:
            self.kv = torch.zeros(shape, dtype=layout.torch_dtype, device=device)
        # [num_blocks, block_bytes]: the same memory, block by block.
        self.blocks = self.kv.view(torch.uint8).view(num_blocks, layout.block_bytes)
        self._host: Bytes | None = None  # [num_blocks, block_bytes]
        self._pages: PagesAhead | None = None
        if device.type == "cpu":
            self._host = self.blocks.numpy()
            if sys.platform == "linux" and self.blocks.data_ptr() % HUGE_PAGE == 0:
                self._pages = PagesAhead(self.blocks.view(-1))
        else:
            self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._staging = torch.empty(layout.block_bytes, dtype=torch.uint8, pin_memory=True)
            self._staging_lock = threading.Lock()

    @property
    def block_bytes(self) -> int:
        return self.layout.block_bytes

    def use(self, num_blocks: int) -> None:
        """Blocks below num_blocks are in use, or were: the next ones get ready."""
        if self._pages is not None:
            self._pages.use(num_blocks * self.block_bytes)

    def read_block(self, block_id: int) -> memoryview:
        """The block's bytes: the block itself on the CPU, a copy of it elsewhere."""
        if self._host is not None:
            return memoryview(self._host[block_id])
        with self._staging_lock, torch.cuda.stream(self._stream):
            self._staging.copy_(self.blocks[block_id], non_blocking=True)
            self._stream.synchronize()
            return memoryview(self._staging.numpy().tobytes())

    def write_block(self, block_id: int, buffer: bytes | bytearray | memoryview) -> None:
        """Copy one block's bytes in; safe from another thread while the engine steps."""
        source = np.frombuffer(buffer, dtype=np.uint8)
        if len(source) != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, got {len(source)}")
        if self._host is not None:
            np.copyto(self._host[block_id], source)
            return
        with self._staging_lock, torch.cuda.stream(self._stream):
            np.copyto(self._staging.numpy(), source)
            self.blocks[block_id].copy_(self._staging, non_blocking=True)
            self._stream.synchronize()

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block to another one, in the order of steps: on the stream that runs them."""
        self.kv[target].copy_(self.kv[source])

    def zero_tail(self, block_id: int, first_offset: int) -> None:
        """Zero the slots from first_offset on: they may hold an earlier owner's KV."""
        self.kv[block_id, :, :, :, first_offset:] = 0
        if self._host is None:
            torch.cuda.current_stream(self.kv.device).synchronize()
