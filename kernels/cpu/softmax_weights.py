"""Weights of a row of logits for the sampler: exp((logit - greatest) / temperature) in float64.

An exponential of its own, since numpy's is scalar on CPUs without AVX-512: x = k * ln 2 + r, the
power of two by its bits, exp(r) by its series, within two units in the last place. Each weight
depends on its own logit alone.
"""

import numpy as np
import numpy.typing as npt

from octavo.kernels.cpu.jit import inlined, jit

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
EXPONENT_BIAS = 1023
LOWEST = -EXPONENT_BIAS * 0.6931471805599453  # here and below the weight is 0
STRIP = 1024  # logits whose intermediate values stay in the first-level cache


def weigh(
    logits: npt.NDArray[np.float32], greatest: float, temperature: float
) -> npt.NDArray[np.float64]:
    """The weights of logits [N] that are at most `greatest`; none may be NaN."""
    weights = np.empty(len(logits))
    bits = np.empty(STRIP, dtype=np.int64)
    _weigh(logits, greatest, temperature, bits, bits.view(np.float64), weights)
    return weights


@inlined
def _exp_near_zero(r):
    """Taylor's series up to r**13, in pairs that do not wait for each other; |r| <= ln(2) / 2."""
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + (1.0 / 2 + r * (1.0 / 6)) * r2
    middle = (1.0 / 24 + r * (1.0 / 120)) + (1.0 / 720 + r * (1.0 / 5040)) * r2
    high = (1.0 / 40320 + r * (1.0 / 362880)) + (1.0 / 3628800 + r * (1.0 / 39916800)) * r2
    top = 1.0 / 479001600 + r * (1.0 / 6227020800)
    return low + (middle + (high + top * r4) * r4) * r4


@inlined
def weigh_strip(logits, greatest, temperature, bits, powers, weights):
    """Weights of at most STRIP logits; bits: [STRIP] int64, powers: the same memory as float64."""
    for i in range(len(logits)):
        x = (np.float64(logits[i]) - greatest) / temperature
        x = x if x > LOWEST else LOWEST
        k = np.int32(x * LOG2_E - 0.5)  # rounds, since x is not positive
        r = (x - np.float64(k) * LN2_HIGH) - np.float64(k) * LN2_LOW
        bits[i] = (np.int64(k) + EXPONENT_BIAS) << 52
        weights[i] = _exp_near_zero(r)
    for i in range(len(logits)):
        weights[i] *= powers[i]


@jit
def _weigh(logits, greatest, temperature, bits, powers, weights):
    for start in range(0, len(logits), STRIP):
        end = start + STRIP
        weigh_strip(logits[start:end], greatest, temperature, bits, powers, weights[start:end])
