"""Memory that kernels take their results from while a step is recorded: it stays where it is.

    empty(shape) --> a block nobody uses, of the next power of two of bytes --> a tensor in it

A block is handed out again once no tensor lies in it any more, so a step's layers share a few
blocks, and so do the steps of all sizes. What lay in a block is overwritten by the next step that
uses it: whoever keeps a tensor of the arena copies it.
"""

import math
import sys

import numpy as np
import numpy.typing as npt
import torch

LEAST_BYTES = 64  # also what blocks are aligned to: a cache line
Bytes = npt.NDArray[np.uint8]


class Block:
    """Memory that begins with a cache line."""

    __slots__ = ("room", "begin")

    def __init__(self, size: int) -> None:
        self.room: Bytes = np.empty(size + LEAST_BYTES, np.uint8)
        self.begin = -self.room.ctypes.data % LEAST_BYTES


class Arena:
    """Blocks by size; none is ever moved, all are given back with the arena."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[Block]] = {}
        fresh = [Block(0)]
        self._unused = sys.getrefcount(fresh[0].room)  # of what only its block refers to

    @property
    def num_bytes(self) -> int:
        """What was ever asked for; pages that nobody wrote cost no memory."""
        return sum(size * len(blocks) for size, blocks in self._by_size.items())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor whose block is its own until it and its views are gone."""
        num_bytes = math.prod(shape) * dtype.itemsize
        size = max(LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        block = self._unused_block(size)
        return _tensor(block.room[block.begin : block.begin + num_bytes], shape, dtype)

    def lasting(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of this arena, kept for what is written there later: its block counts as unused.

        The arena lives as long.
        """
        return _tensor(np.asarray(_Place(self, tensor)), tuple(tensor.shape), tensor.dtype)

    def _unused_block(self, size: int) -> Block:
        blocks = self._by_size.setdefault(size, [])
        for index in range(len(blocks)):
            # A tensor's memory refers to the room as long as there is a view of it.
            if sys.getrefcount(blocks[index].room) == self._unused:
                return blocks[index]
        blocks.append(Block(size))
        return blocks[-1]


class _Place:
    """The memory of a tensor, for numpy; holds the arena and no block of it."""

    def __init__(self, arena: Arena, tensor: torch.Tensor) -> None:
        self._arena = arena
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (tensor.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def _tensor(memory: Bytes, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # Shaped by numpy: a recording looks at whatever torch does.
    rows = memory.reshape(*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.from_numpy(rows).view(dtype)
