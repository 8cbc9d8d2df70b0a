"""The sampler's draw for many rows, without sorting them (the rule: octavo/engine/sampler.py).

    logits --exp--> weights --64 buckets an octave--> mass and number of each
        top-k, top-p, the draw: the bucket in which it falls --quickselect--> the token

Buckets and their parts are added up in another order than the rule's running sum. That changes a
token only where a boundary lies within rounding of the sum: such a row is left to the caller.
"""

import math

import numpy as np
import numpy.typing as npt
import torch

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES, LINE
from octavo.kernels.cpu.memory import array_at, borrow, give_back, unpacked
from octavo.kernels.cpu.softmax_weights import STRIP, weigh_strip
from octavo.kernels.cpu.team import kernel_per_format, run
from octavo.kernels.cpu.vector import FLOAT, load, load_some, store, store_some

BUCKETS = 4096
BUCKET_SHIFT = 46  # leaves exponent and 6 bits of the mantissa
FIRST_BUCKET = 1023 << 6  # that of 1.0
# A sum of n numbers is exact to n * 2**-53 of itself, in any order; sums of sums, and two of them.
ROUNDING = 2.0**-49
UNSURE = -1
# With top-k only tokens of at least this weight are looked at, the greatest being 1, if enough are.
HEAD_FLOOR = math.exp(-6.0)
FLOOR_MARGIN = 1e-6
LEAST_FLOAT32 = float(np.finfo(np.float32).min)
F64, I64 = np.float64(0), np.int64(0)


@inlined
def _widen(format, source, target, count):
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        store(FLOAT, target, i, load(format, source, i))
    if whole < count:
        rest = load_some(format, source, whole, count - whole)
        store_some(FLOAT, target, whole, count - whole, rest)


@inlined
def _bucket(bits):
    return min(FIRST_BUCKET - (bits >> BUCKET_SHIFT), BUCKETS - 1)


@inlined
def _fill_buckets(weights, bits, least, masses, counts):
    """Weights of at least `least`, by bucket; returns their number."""
    masses[:] = 0.0
    counts[:] = 0
    for i in range(len(weights)):
        if weights[i] >= least:
            b = _bucket(bits[i])
            masses[b] += weights[i]
            counts[b] += 1
    return counts.sum()


@inlined
def _gather(row, bucket):
    """The tokens of a bucket, in order of ids; returns how many."""
    weights, bits, least, _, _, found, ids, tokens = row
    count = 0
    for i in range(len(weights)):
        if _bucket(bits[i]) == bucket and weights[i] >= least:
            found[count], ids[count] = weights[i], tokens[i]
            count += 1
    return count


@inlined
def _stands_before(weight, token_id, other_weight, other_id):
    return weight > other_weight or (weight == other_weight and token_id < other_id)


@inlined
def _swap(found, ids, i, j):
    found[i], found[j] = found[j], found[i]
    ids[i], ids[j] = ids[j], ids[i]


@inlined
def _partition(found, ids, low, high):
    """Put the tokens low .. high - 1 that stand before the middle one to its left; its place."""
    high -= 1
    _swap(found, ids, (low + high) // 2, high)
    pivot, pivot_id = found[high], ids[high]
    place = low
    for i in range(low, high):
        if _stands_before(found[i], ids[i], pivot, pivot_id):
            _swap(found, ids, i, place)
            place += 1
    _swap(found, ids, place, high)
    return place


@inlined
def _cross(found, ids, count, target, before, mass, by_rank):
    """Where the running sum of a bucket's tokens, sorted, passes `target`.

    The sum counts tokens (by_rank) or their weights, and begins at `before`; `mass` is the weight
    of all buckets before. Returns (sum before the token, mass before it, its weight, its id); the
    last token where rounding keeps the sum below the target.
    """
    low, high = 0, count
    while True:
        place = _partition(found, ids, low, high)
        left = 0.0
        for i in range(low, place):
            left += found[i]
        size = np.float64(place - low) if by_rank else left
        own = 1.0 if by_rank else found[place]
        if target < before + size and place > low:
            high = place
        elif target < before + size + own or place + 1 == high:
            return before + size, mass + left, found[place], ids[place]
        else:
            before += size + own
            mass += left + found[place]
            low = place + 1


@inlined
def _locate(row, target, by_rank):
    """As `_cross`, over all buckets; id -1 if it falls among the least weights."""
    _, _, _, masses, counts, found, ids, _ = row
    before, mass = 0.0, 0.0
    for b in range(BUCKETS - 1):
        size = np.float64(counts[b]) if by_rank else masses[b]
        if target < before + size:
            count = _gather(row, b)
            return _cross(found, ids, count, target, before, mass, by_rank)
        before += size
        mass += masses[b]
    return before, mass, 0.0, UNSURE


@inlined
def _draw(row, size, num_kept, top_k, top_p, uniform):
    """The token of a row whose buckets are filled with num_kept tokens, or UNSURE."""
    total = row[3].sum()
    margin = ROUNDING * size * total
    if 0 < top_k < size and top_k <= num_kept:
        _, mass, weight, token_id = _locate(row, top_k - 0.5, True)
        if token_id < 0:
            return UNSURE
        total = mass + weight
    if top_p < 1.0:
        target = top_p * total
        before, _, weight, token_id = _locate(row, target, False)
        is_sure = (target - before > margin or before == 0.0) and before + weight - target > margin
        if token_id < 0 or not is_sure:
            return UNSURE
        total = before + weight
    target = uniform * total
    before, _, weight, token_id = _locate(row, target, False)
    is_sure = (target - before > margin or before == 0.0) and before + weight - target > margin
    return token_id if is_sure else UNSURE


@inlined
def _keep_above(strip, lowest, start, kept, tokens, count):
    """Append the logits of a strip that reach `lowest`, and their ids; returns how many there are
    then."""
    for i in range(len(strip)):
        if strip[i] >= lowest:
            kept[count], tokens[count] = strip[i], start + i
            count += 1
    return count


@inlined
def _lowest_logit(greatest, temperature, floor):
    """Below this no weight reaches `floor`; a little less, since it is compared in float32."""
    if floor == 0.0:
        return -np.float32(np.inf)
    lowest = greatest + temperature * (np.log(floor) - FLOOR_MARGIN)
    return np.float32(max(lowest, LEAST_FLOAT32))


@inlined
def _weigh_above(format, source, size, item, scale, floor, strips, kept, tokens, weights):
    """Weights and ids of all tokens of a row that may reach `floor`, and some more; how many."""
    strip_at, strip, power_bits, powers = strips
    greatest, temperature = scale
    lowest = _lowest_logit(greatest, temperature, floor)
    count = 0
    for start in range(0, size, STRIP):
        num = min(STRIP, size - start)
        _widen(format, source + start * item, strip_at, num)
        count = _keep_above(strip[:num], lowest, start, kept, tokens, count)
    for start in range(0, count, STRIP):
        end = min(start + STRIP, count)
        span = weights[start:end]
        weigh_strip(kept[start:end], greatest, temperature, power_bits, powers, span)
    return count


@kernel_per_format
def _draw_rows(format):
    def draw_rows(args, first, last):
        """logits: [*, size], stride in bytes; of each item: its row, the row's greatest logit,
        temperature, top_p, min_p and uniform, and top_k; out: int64."""
        logits, stride, size, item, num_items = unpacked(args, 5)
        rows_at, numbers_at, top_ks_at, out_at = unpacked(args + 5 * 8, 4)
        rows, top_ks = array_at(I64, rows_at, num_items), array_at(I64, top_ks_at, num_items)
        out, numbers = array_at(I64, out_at, num_items), array_at(F64, numbers_at, 5 * num_items)
        room = borrow(36 * size + 16 * BUCKETS + 12 * STRIP + LINE)
        base = (room + LINE - 1) // LINE * LINE
        masses, counts = array_at(F64, base, BUCKETS), array_at(I64, base + 8 * BUCKETS, BUCKETS)
        base += 16 * BUCKETS
        powers, power_bits = array_at(F64, base, STRIP), array_at(I64, base, STRIP)
        strip_at = base + 8 * STRIP
        strip = array_at(FLOAT, strip_at, STRIP)
        base += 12 * STRIP
        all_weights, all_bits = array_at(F64, base, size), array_at(I64, base, size)
        found, ids = array_at(F64, base + 8 * size, size), array_at(I64, base + 16 * size, size)
        tokens, kept = (
            array_at(I64, base + 24 * size, size),
            array_at(FLOAT, base + 32 * size, size),
        )
        strips = (strip_at, strip, power_bits, powers)
        for i in range(first, last):
            source = logits + rows[i] * stride
            scale = numbers[5 * i], numbers[5 * i + 1]
            top_p, min_p, uniform = numbers[5 * i + 2], numbers[5 * i + 3], numbers[5 * i + 4]
            top_k = top_ks[i]
            floor = max(min_p, HEAD_FLOOR) if 0 < top_k < size else min_p
            while True:
                count = _weigh_above(
                    format, source, size, item, scale, floor, strips, kept, tokens, all_weights
                )
                weights, bits = all_weights[:count], all_bits[:count]
                num_kept = _fill_buckets(weights, bits, floor, masses, counts)
                if floor == min_p or num_kept >= top_k:
                    break
                floor = min_p
            row = (weights, bits, floor, masses, counts, found, ids, tokens)
            out[i] = _draw(row, size, num_kept, top_k, top_p, uniform)
        give_back(room)

    return draw_rows


def draw_rows(
    logits: torch.Tensor,
    rows: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.float64],
    top_ks: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The tokens drawn from rows of logits [N, size], -1 where rounding might decide.

    rows: [D], which of logits; numbers: [D, 5], each row's greatest logit (finite), temperature,
    top_p, min_p and uniform; top_ks: [D], 0 for all.
    """
    code = _draw_rows(logits.dtype)
    size, item = logits.shape[1], logits.element_size()
    assert size > 0 and logits.stride(1) == 1, "a row is one span of memory"
    assert numbers.flags.c_contiguous and numbers.shape == (len(rows), 5)
    out = np.empty(len(rows), np.int64)
    where = (rows.ctypes.data, numbers.ctypes.data, top_ks.ctypes.data, out.ctypes.data)
    args = (logits.data_ptr(), logits.stride(0) * item, size, item, len(rows), *where)
    run(code, args, len(rows), 1)
    return out
