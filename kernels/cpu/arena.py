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
Block = npt.NDArray[np.uint8]


class Arena:
    """Blocks by size; none is ever moved, all are given back with the arena."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[Block]] = {}
        fresh = [np.zeros(0, np.uint8)]
        self._unused = sys.getrefcount(fresh[0])  # of what only a list refers to

    @property
    def num_bytes(self) -> int:
        """What was ever asked for; pages that nobody wrote cost no memory."""
        return sum(size * len(blocks) for size, blocks in self._by_size.items())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor whose block is its own until it and its views are gone."""
        num_bytes = math.prod(shape) * dtype.itemsize
        size = max(LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        return _tensor(self._unused_block(size), shape, dtype)

    def lasting(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of this arena, kept for what is written there later: its block counts as unused.

        The arena lives as long.
        """
        return _tensor(np.asarray(_Place(self, tensor)), tuple(tensor.shape), tensor.dtype)

    def _unused_block(self, size: int) -> Block:
        blocks = self._by_size.setdefault(size, [])
        for index in range(len(blocks)):
            # A tensor's memory refers to the block as long as there is a view of it.
            if sys.getrefcount(blocks[index]) == self._unused:
                return blocks[index]
        room = np.empty(size + LEAST_BYTES, np.uint8)
        skipped = -room.ctypes.data % LEAST_BYTES
        block = room[skipped : skipped + size]
        blocks.append(block)
        return block


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


def _tensor(block: Block, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(block)[:num_bytes].view(dtype).view(shape)
