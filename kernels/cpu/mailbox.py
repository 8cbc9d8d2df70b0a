"""How the main thread of a team hands a kernel to its helpers: a few words of shared memory.

    claims   ticket << 32 | items nobody has taken yet       kernel, args, num_items, grain
    done     items the helpers have finished
    open     1 while a step is at work                       present  helpers that are listening
    rest     steps that main goes alone yet                  penalty  how many it was, last time

Main writes the kernel, then `claims`; whoever lowers `claims` by one compare-and-swap owns the
items it took away. The ticket is another for every kernel, so a helper that slept through the end
of one cannot take items of the next by what it knew before. Main returns when `done` says that
nobody is at work on the kernel any more. All this is numba code without the GIL.

On a core that another program uses too, a helper may be put aside in the middle of a chunk, for
milliseconds. When main has waited for longer than any chunk takes, it goes on alone, for this step
and the next one, after another such wait for three, and so on up to fifteen.
"""

from octavo.kernels.cpu.atomics import (
    add_number,
    call_kernel,
    let_others_run,
    load_number,
    load_word,
    on_stack,
    pause,
    read_file,
    replace_number,
    replace_word,
    sleep_us,
    store_number,
    store_word,
    write_file,
)
from octavo.kernels.cpu.jit import inlined, jit
from octavo.kernels.cpu.memory import read_i64

# Offsets in bytes. What a kernel's start touches is one cache line, what its end touches another.
CLAIMS, KERNEL, ARGS, NUM_ITEMS, GRAIN = 0, 8, 16, 24, 32
DONE, OPEN, REST, PENALTY, PRESENT, NOTE = 64, 128, 136, 144, 192, 256
MAILBOX_BYTES = 320
# A helper's line: the addresses of its shared words, the pipe it sleeps in, words of its own.
WANTED, BORROWED, WAKE, OWN_WANTED, OWN_BORROWED = 0, 8, 16, 24, 28
HELPER_BYTES = 64
ITEMS = 0xFFFFFFFF  # the part of `claims` that counts items
SPINS = 2000  # pauses, some 50 us, before other threads of this core get a turn
STALL = 480_000  # pauses, some 10 ms: no chunk takes so long, so the helper is not running
MOST_REST = 15  # steps
AWAY_US = 5000  # between two looks of a helper at whether its core is free again


@inlined
def _take(mailbox, claims):
    """Do a chunk of the kernel that `claims` belongs to; returns its items, 0 if others did it."""
    kernel, args = load_number(mailbox + KERNEL), load_number(mailbox + ARGS)
    num_items, grain = load_number(mailbox + NUM_ITEMS), load_number(mailbox + GRAIN)
    left = claims & ITEMS
    count = min(grain, left)
    if not replace_number(mailbox + CLAIMS, claims, claims - count):
        return 0
    call_kernel(kernel, args, num_items - left, num_items - left + count)
    return count


@inlined
def _wait(spins):
    """One turn of a spinning loop; returns how many there were."""
    if spins % SPINS == SPINS - 1:
        let_others_run()
    pause()
    return spins + 1


@inlined
def _go_alone(mailbox):
    """Dismiss the helpers for this step and some more."""
    penalty = min(MOST_REST, 2 * load_number(mailbox + PENALTY) + 1)
    store_number(mailbox + OPEN, 0)
    store_number(mailbox + PENALTY, penalty)
    store_number(mailbox + REST, penalty)


@inlined
def hand_out(mailbox, kernel, address, num_items, grain):
    """Call the kernel for items 0 .. num_items - 1, by all who listen at `mailbox` (0 for none).

    address: of its arguments.
    """
    if mailbox == 0 or num_items <= grain or load_number(mailbox + PRESENT) == 0:
        if num_items > 0:
            call_kernel(kernel, address, 0, num_items)
        return
    store_number(mailbox + KERNEL, kernel)
    store_number(mailbox + ARGS, address)
    store_number(mailbox + NUM_ITEMS, num_items)
    store_number(mailbox + GRAIN, grain)
    store_number(mailbox + DONE, 0)
    claims = ((load_number(mailbox + CLAIMS) >> 32) + 1) << 32 | num_items
    store_number(mailbox + CLAIMS, claims)
    own = 0
    while claims & ITEMS:
        own += _take(mailbox, claims)
        claims = load_number(mailbox + CLAIMS)
    spins = 0
    while load_number(mailbox + DONE) + own < num_items:
        spins = _wait(spins)
        if spins == STALL:
            _go_alone(mailbox)


@jit
def run_kernel(mailbox, kernel, args, num_items, grain):
    """`hand_out` of arguments in a tuple."""
    hand_out(mailbox, kernel, on_stack(args), num_items, grain)


@jit
def start_step(mailbox, helpers, num_helpers):
    """Wake the helpers, unless they stalled lately."""
    rest = load_number(mailbox + REST)
    if rest > 0:
        store_number(mailbox + REST, rest - 1)
        return
    store_number(mailbox + OPEN, 1)
    for i in range(num_helpers):
        # A full pipe wakes its reader as well.
        write_file(read_i64(helpers + i * HELPER_BYTES, WAKE // 8), mailbox + NOTE, 1)


@jit
def end_step(mailbox):
    """Dismiss the helpers; they may still be on their way out."""
    if load_number(mailbox + OPEN) == 1:  # a step without a stall
        store_number(mailbox + PENALTY, load_number(mailbox + PENALTY) >> 1)
    store_number(mailbox + OPEN, 0)


@inlined
def _listen(mailbox, wanted):
    """Take items until the step ends or the core is wanted back."""
    spins = 0
    while load_number(mailbox + OPEN) == 1 and load_word(wanted) == 0:
        claims = load_number(mailbox + CLAIMS)
        if claims & ITEMS:
            add_number(mailbox + DONE, _take(mailbox, claims))
            spins = 0
        else:
            spins = _wait(spins)


@jit
def help_main(mailbox, helper, pipe, room):
    """What a helper does until its pipe is closed; room: 64 bytes for what it reads."""
    wanted, borrowed = read_i64(helper, WANTED // 8), read_i64(helper, BORROWED // 8)
    while read_file(pipe, room, 64) > 0:
        while load_number(mailbox + OPEN) == 1:
            # Said first, looked at second, as whoever wants the core does: one of both sees it.
            if load_word(wanted) != 0 or not replace_word(borrowed, 0, 1):
                sleep_us(AWAY_US)
                continue
            add_number(mailbox + PRESENT, 1)
            _listen(mailbox, wanted)
            add_number(mailbox + PRESENT, -1)
            store_word(borrowed, 0)


@jit
def read_word(address):
    """The int32 at `address`, as other processes see it."""
    return load_word(address)


@jit
def write_word(address, value):
    """The int32 at `address` becomes value, for all, before anything that is done after."""
    store_word(address, value)
