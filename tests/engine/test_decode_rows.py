"""Kept rows show what a batch made anew would, and stay where they are."""

import numpy as np
import pytest
import torch

from engine.counting import make_sequence
from octavo.engine.decode_rows import DecodeRows
from octavo.engine.sequence import Sequence

BLOCK, MAX_SEQS, MAX_BLOCKS = 4, 6, 50


def decoding(rng: np.random.Generator, name: int) -> Sequence:
    """A sequence that is one token behind, with a table of its own."""
    seq = make_sequence(str(name), rng.integers(0, 1000, rng.integers(2, 30)).tolist(), 200)
    seq.num_computed_tokens = seq.num_tokens - 1
    seq.add_blocks(rng.integers(0, 10**9, -(-seq.num_tokens // BLOCK)).tolist())
    return seq


def check(rows: DecodeRows, seqs: list[Sequence]) -> None:
    batch = rows.update(seqs)
    assert batch.token_ids.tolist() == [seq.token_ids[-1] for seq in seqs]
    assert batch.positions.tolist() == [seq.num_tokens - 1 for seq in seqs]
    assert batch.seq_lens.tolist() == [seq.num_tokens for seq in seqs]
    assert batch.slot_mapping.tolist() == [
        seq.block_ids[(seq.num_tokens - 1) // BLOCK] * BLOCK + (seq.num_tokens - 1) % BLOCK
        for seq in seqs
    ]
    num_blocks = [-(-seq.num_tokens // BLOCK) for seq in seqs]
    assert batch.block_tables.shape == (len(seqs), max(num_blocks))
    for row, seq, count in zip(batch.block_tables.tolist(), seqs, num_blocks, strict=True):
        assert row[:count] == seq.block_ids[:count]
    assert batch.query_start.tolist() == list(range(len(seqs) + 1))
    assert batch.logit_rows.tolist() == list(range(len(seqs)))
    assert batch.num_decodes == len(seqs)


@pytest.mark.parametrize("seed", range(20))
def test_rows_follow_sequences_that_grow_come_go_and_change_blocks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = DecodeRows(MAX_SEQS, MAX_BLOCKS, BLOCK)
    seqs = [decoding(rng, name) for name in range(3)]
    for step in range(60):
        check(rows, seqs)
        for seq in seqs:
            seq.append(int(rng.integers(0, 1000)))
            seq.num_computed_tokens += 1
            if seq.num_computed_tokens == len(seq.block_ids) * BLOCK:
                seq.add_blocks([int(rng.integers(0, 10**9))])
        match rng.integers(0, 6):
            case 0 if len(seqs) > 1:
                seqs.pop(rng.integers(0, len(seqs)))
            case 1 if len(seqs) < MAX_SEQS:
                seqs.insert(rng.integers(0, len(seqs) + 1), decoding(rng, 100 + step))
            case 2:
                seqs[0].replace_block(0, int(rng.integers(0, 10**9)))
            case 3:  # preempted and back in other blocks
                count = len(seqs[-1].take_blocks())
                seqs[-1].add_blocks(rng.integers(0, 10**9, count).tolist())


def test_rows_never_move() -> None:
    rng = np.random.default_rng(1)
    rows = DecodeRows(MAX_SEQS, MAX_BLOCKS, BLOCK)
    for count in (1, 6, 2):
        batch = rows.update([decoding(rng, name) for name in range(count)])
        assert batch.block_tables.data_ptr() == rows.tables.data_ptr()
        assert batch.block_tables.stride() == (MAX_BLOCKS, 1)
        for view, kept in (
            (batch.token_ids, rows.token_ids),
            (batch.positions, rows.positions),
            (batch.slot_mapping, rows.slots),
            (batch.seq_lens, rows.seq_lens),
            (batch.query_start, rows.query_start),
            (batch.logit_rows, rows.rows),
        ):
            assert view.data_ptr() == kept.data_ptr() and view.dtype == kept.dtype


def test_slots_beyond_two_to_the_31_are_exact() -> None:
    seq = make_sequence("a", [1, 2], 4)
    seq.num_computed_tokens = 1
    seq.add_blocks([2**31 - 1])
    batch = DecodeRows(1, 1, 16).update([seq])
    assert batch.slot_mapping.dtype == torch.int64
    assert batch.slot_mapping.tolist() == [(2**31 - 1) * 16 + 1]
