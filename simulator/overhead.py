"""What a request and a token cost beside model steps; all zero is a service of steps alone."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overhead:
    """CPU seconds are work on a core that others may share; the rest is waiting."""

    request_s: float = 0.0  # from the client's send to the workers' inboxes, without CPU
    request_cpu_s: float = 0.0  # of router and client, a request
    front_step_cpu_s: float = 0.0  # of router and client, a step that brings tokens
    front_token_cpu_s: float = 0.0  # and each of its token messages
    decode_step_cpu_s: float = 0.0  # of the decode worker, beside the step itself
    decode_token_cpu_s: float = 0.0
    prefill_request_cpu_s: float = 0.0  # of the prefill worker, a request
    copy_s_per_byte: float = 0.0  # on either side of a hand-off
    wire_s_per_byte: float = 0.0
    wire_s: float = 0.0  # a hand-off, whatever its size
