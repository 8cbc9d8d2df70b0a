"""Decode steps replayed from CUDA graphs, one graph for each batch size and table width.

    Batch --> decode rows alone? --no--> model.forward, kernel by kernel
                    | yes
        copied into fixed inputs, padded up to the next size --> recorded before? --no--> record
                                                                       | yes
                                                       replay --> fixed logits [:num_seqs]

A graph freezes addresses, shapes and grids, so everything that changes from step to step is read
from device memory. Rows of padding have length 0 and slot -1: kernels skip both. A table's width
bounds the lengths, and with them the number of splits; few widths keep short sequences from paying
for long ones.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol

import torch

from octavo.engine.batch import Batch
from octavo.engine.model_runner import Model

# Below this many rows a step reads weights all the time, and padding costs next to nothing.
LAST_POWER, LATER_STEP = 64, 32
FIRST_WIDTH_TOKENS, WIDTH_FACTOR = 2048, 4
# Left to everyone else on the GPU: no graph is recorded once less is free.
SPARE_BYTES = 512 * 2**20


class Graph(Protocol):
    """Something recorded."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Makes graphs of calls; the call returns nothing and works on fixed tensors only."""

    def has_room(self) -> bool: ...

    def record(self, call: Callable[[], None]) -> Graph: ...


class CudaRecorder:
    """Records on a stream of its own; all graphs share one pool for what they compute on the way,
    since no two run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def has_room(self) -> bool:
        return torch.cuda.mem_get_info(self._device)[0] > SPARE_BYTES

    def record(self, call: Callable[[], None]) -> Graph:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            call()  # compiles kernels and sets up libraries, which recording does not allow
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads copy blocks meanwhile; their calls are no part of this.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            call()
        return graph


class FixedInputs:
    """The inputs of every graph: buffers for the largest step, of which a graph reads the front."""

    def __init__(self, max_seqs: int, max_blocks: int, device: torch.device) -> None:
        self._token_ids = torch.zeros(max_seqs, dtype=torch.int64, device=device)
        self._positions = torch.zeros(max_seqs, dtype=torch.int64, device=device)
        self._slots = torch.full((max_seqs,), -1, dtype=torch.int64, device=device)
        self._tables = torch.zeros((max_seqs, max_blocks), dtype=torch.int32, device=device)
        self._seq_lens = torch.zeros(max_seqs, dtype=torch.int32, device=device)
        self._rows = torch.arange(max_seqs + 1, device=device)
        self._query_start = self._rows.int()

    def fill(self, batch: Batch, size: int) -> None:
        """The batch's rows, then padding up to size."""
        num_seqs, width = batch.block_tables.shape
        self._token_ids[:num_seqs].copy_(batch.token_ids)
        self._positions[:num_seqs].copy_(batch.positions)
        self._slots[:num_seqs].copy_(batch.slot_mapping)
        self._tables[:num_seqs, :width].copy_(batch.block_tables)
        self._seq_lens[:num_seqs].copy_(batch.seq_lens)
        if num_seqs < size:
            self._slots[num_seqs:size].fill_(-1)
            self._seq_lens[num_seqs:size].zero_()

    def clear(self, size: int) -> None:
        """Nothing but padding."""
        self._slots[:size].fill_(-1)
        self._seq_lens[:size].zero_()

    def view(self, size: int, width: int) -> Batch:
        return Batch(
            token_ids=self._token_ids[:size],
            positions=self._positions[:size],
            slot_mapping=self._slots[:size],
            block_tables=self._tables[:size, :width],
            seq_lens=self._seq_lens[:size],
            query_start=self._query_start[: size + 1],
            num_decodes=size,
            logit_rows=self._rows[:size],
        )


class GraphedModel:
    """A model whose decode steps are replayed; everything else it hands on."""

    def __init__(
        self,
        model: Model,
        kv: torch.Tensor,
        recorder: Recorder,
        *,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int,
        dtype: torch.dtype,
    ) -> None:
        """dtype: of the logits."""
        block_size = kv.shape[4]
        self._model = model
        self._kv = kv
        self._recorder = recorder
        self._sizes = batch_sizes(max_num_seqs)
        self._widths = table_widths(-(-max_model_len // block_size), block_size)
        self._inputs = FixedInputs(max_num_seqs, self._widths[-1], kv.device)
        self._logits = torch.empty(max_num_seqs, vocab_size, dtype=dtype, device=kv.device)
        self._graphs: dict[tuple[int, int], Graph] = {}

    def forward(self, batch: Batch, kv: torch.Tensor) -> torch.Tensor:
        """As the model's own; what a replay returns is overwritten by the next one."""
        assert kv is self._kv, "graphs were recorded over another pool"
        key = self._find(batch)
        if key is None:
            return self._model.forward(batch, kv)
        self._inputs.fill(batch, key[0])
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._record(*key)
        graph.replay()
        return self._logits[: batch.num_decodes]

    @torch.inference_mode()
    def record_ahead(self, limit_s: float) -> int:
        """Record the narrowest graph of each size, largest first, for limit_s at most: the others
        come when they are needed. Returns how many there are."""
        deadline = monotonic() + limit_s
        for size in reversed(self._sizes):
            if monotonic() > deadline or not self._recorder.has_room():
                break
            self._inputs.clear(size)
            self._record(size, self._widths[0])
        return len(self._graphs)

    def _find(self, batch: Batch) -> tuple[int, int] | None:
        """The graph for a batch, None if it has to run kernel by kernel."""
        num_seqs, width = batch.block_tables.shape
        is_decode = 0 < num_seqs == batch.num_decodes == len(batch.token_ids)
        if not is_decode or batch.groups is not None or len(batch.logit_rows) != num_seqs:
            return None
        if batch.adapters:
            return None
        if num_seqs > self._sizes[-1] or width > self._widths[-1]:
            return None
        key = (
            self._sizes[bisect_left(self._sizes, num_seqs)],
            self._widths[bisect_left(self._widths, width)],
        )
        return key if key in self._graphs or self._recorder.has_room() else None

    def _record(self, size: int, width: int) -> Graph:
        graph = self._recorder.record(partial(self._run, self._inputs.view(size, width)))
        self._graphs[size, width] = graph
        return graph

    def _run(self, batch: Batch) -> None:
        self._logits[: batch.num_decodes].copy_(self._model.forward(batch, self._kv))


def batch_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, .. 64, then every 32nd, and the largest itself."""
    sizes = [1]
    while sizes[-1] < max_num_seqs:
        last = sizes[-1]
        sizes.append(min(2 * last if last < LAST_POWER else last + LATER_STEP, max_num_seqs))
    return sizes


def table_widths(max_blocks: int, block_size: int) -> list[int]:
    """Blocks of 2,048 tokens, four times that, and so on up to max_blocks."""
    widths = [min(FIRST_WIDTH_TOKENS // block_size, max_blocks)]
    while widths[-1] < max_blocks:
        widths.append(min(WIDTH_FACTOR * widths[-1], max_blocks))
    return widths
