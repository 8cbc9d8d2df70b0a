"""Query heads of several sequences as the lanes of columns.py: transposed in, and back out.

queries  [chunk][dimension][row]     a chunk has one to MAX_VECTORS vectors of 16 rows; for the
                                     CPU's matrix tiles (short_kind.py) 32 rows
outputs  [chunk][dimension][row]  -->  partials [sequence][head][head_width]  (heads.py)
"""

from octavo.kernels.cpu.columns import MAX_VECTORS, are_pairs
from octavo.kernels.cpu.heads import ZERO, copy_head, head_width, load_query, merge_head
from octavo.kernels.cpu.integer_rows import shorten_query
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import copy_bytes, read_i32, write_f32, write_i64
from octavo.kernels.cpu.panels import transpose
from octavo.kernels.cpu.short_kind import are_integers, are_tiles
from octavo.kernels.cpu.tile_attention import CHUNK
from octavo.kernels.cpu.vector import FLOAT, first_lane, load, splat, store


@inlined
def chunk_vectors(kind, lane, count):
    """How many vectors of rows the chunk that begins at a lane has; chunks are about even."""
    if are_tiles(kind):
        return CHUNK // LANES
    left = (count - lane + LANES - 1) // LANES
    num_chunks = (left + MAX_VECTORS - 1) // MAX_VECTORS
    return (left + num_chunks - 1) // num_chunks


@inlined
def load_queries(
    format,
    kind,
    query,  # of sequence 0 and this KV head's first head
    query_strides,
    owners,  # [members] int32
    owned,  # (first row, number of rows, heads of each member, head_dim, width, bytes per element)
    addresses,  # [16] int64
    scratch,
    target,  # (queries, for integers the scales of rows' scores)
    scale,
):
    """queries[chunk][dimension][row] = query, scaled unless elements are pairs; no row, zero."""
    queries, scales = target
    first, count, heads, size, width, item_bytes = owned
    depth = width // 2 if are_pairs(kind) else width
    lane = 0
    while lane < count:
        vectors = chunk_vectors(kind, lane, count)
        for vec in range(vectors):
            for i in range(0, LANES * width, LANES):
                store(FLOAT, scratch, i, splat(ZERO))
            for j in range(LANES):
                row = scratch + 4 * j * depth
                write_i64(addresses, j, row)
                r = lane + vec * LANES + j
                if r < count:
                    member, h = divmod(first + r, heads)
                    source = query + read_i32(owners, member) * query_strides[0]
                    source += h * query_strides[1]
                    if are_pairs(kind):
                        copy_bytes(row, source, size * item_bytes)
                    else:
                        load_query(format, source, row, size, scale)
                if are_integers(kind):
                    write_f32(scales, r, scale * shorten_query(format, row, width))
            chunk = queries + 4 * (lane * depth + vec * LANES)
            for i in range(0, depth, LANES):
                place = chunk + 4 * i * vectors * LANES
                transpose(FLOAT, addresses, i, place, vectors * LANES)
        lane += vectors * LANES


@inlined
def save_outputs(kind, outputs, state, owners, owned, num_heads, addresses, scratch, partials):
    """Every row's softmax to its place in partials, which begin at this KV head's first head."""
    highest, total, level = state
    first, count, heads, size, width, _ = owned
    kept = (size + LANES - 1) // LANES * LANES
    lane = 0
    while lane < count:
        vectors = chunk_vectors(kind, lane, count)
        chunk = outputs + 4 * lane * width
        for vec in range(vectors):
            for i in range(0, kept, LANES):
                for j in range(LANES):
                    write_i64(addresses, j, chunk + 4 * (i + j) * vectors * LANES)
                place = scratch + 4 * i
                transpose(FLOAT, addresses, vec * LANES, place, head_width(kept))
            for j in range(min(LANES, count - lane - vec * LANES)):
                r = lane + vec * LANES + j
                head = scratch + 4 * j * head_width(kept)
                store(FLOAT, head, kept, splat(first_lane(load(FLOAT, highest, r))))
                store(FLOAT, head, kept + LANES, splat(first_lane(load(FLOAT, total, r))))
                member, h = divmod(first + r, heads)
                place = read_i32(owners, member) * num_heads + h
                partial = partials + 4 * place * head_width(kept)
                if level > 0:
                    merge_head(partial, head, kept)
                else:
                    copy_head(partial, head, kept)
        lane += vectors * LANES
