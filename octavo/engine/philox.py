"""Counter-based random numbers: Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy
as 1, 2, 3" (SC'11).

    key     = seed, low and high word
    counter = position, low and high word | 0 | stream (0: the token draw)

A draw depends on nothing but these, so it is the same in any batch, on any worker, and after a
preemption or a move. Sample i of a request draws with seed + i (modulo 2^64), so that it is what a
request of its own with that seed gives.
"""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # each holds one 32-bit word

MULTIPLIER_0, MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
NUM_ROUNDS = 10
NUM_SEEDS = 2**64
WORD_BITS = np.uint64(32)
LOW_WORD = np.uint64(0xFFFFFFFF)
TOKEN_DRAW = 0  # the counter's last word; other uses of a seed take other values


def philox4x32(counter: Words, key: Words) -> Words:
    """Ten rounds. counter: [4, N], key: [2, N]; returns [4, N]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(NUM_ROUNDS):
        product_0, product_1 = c0 * MULTIPLIER_0, c2 * MULTIPLIER_1
        c0 = (product_1 >> WORD_BITS) ^ c1 ^ k0
        c1 = product_1 & LOW_WORD
        c2 = (product_0 >> WORD_BITS) ^ c3 ^ k1
        c3 = product_0 & LOW_WORD
        k0 = (k0 + np.uint64(WEYL_0)) & LOW_WORD
        k1 = (k1 + np.uint64(WEYL_1)) & LOW_WORD
    return np.stack([c0, c1, c2, c3])


def sample_seed(seed: int, sample_index: int) -> int:
    """The seed with which a sample of a request draws."""
    return (seed + sample_index) % NUM_SEEDS


def token_uniforms(seeds: list[int], positions: list[int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) with 53 bits for each row's draw of the token at its position."""
    seed = np.array(seeds, dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    counter = np.stack(
        [
            position & LOW_WORD,
            position >> WORD_BITS,
            np.zeros(len(seeds), dtype=np.uint64),
            np.full(len(seeds), TOKEN_DRAW, dtype=np.uint64),
        ]
    )
    words = philox4x32(counter, np.stack([seed & LOW_WORD, seed >> WORD_BITS]))
    bits = ((words[1] << WORD_BITS) | words[0]) >> np.uint64(11)
    uniforms: npt.NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return uniforms
