"""Items of kernels whose rows come in runs: a run is cut into spans, a span has every KV head.

starts: 0, 3, 4  (rows of run i: starts[i] .. starts[i + 1] - 1, times the heads of a KV head)
items:  (run 0, span 0, KV head 0), (run 0, span 0, KV head 1), .., (run 0, span 1, KV head 0), ..
"""

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.memory import read_i32


@inlined
def find_run(item, run, before, starts, heads, num_kv_heads, span):
    """(the item's run, items of the runs before it), from an earlier run of which that is known."""
    while True:
        rows = (read_i32(starts, run + 1) - read_i32(starts, run)) * heads
        num_items = (rows + span - 1) // span * num_kv_heads
        if item - before < num_items:
            return run, before
        before += num_items
        run += 1
