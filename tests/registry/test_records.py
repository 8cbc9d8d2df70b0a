import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.registry.keys import ModelKeys
from octavo.registry.records import (
    FIELDS,
    MAX_EPOCH,
    MalformedRecord,
    WorkerRecord,
    decode_worker_id,
    new_epoch,
)
from registry.workers import FINGERPRINT, RECORD


def as_redis_returns(record: WorkerRecord) -> list[object]:
    return [record.to_fields()[name].encode() for name in FIELDS]


@pytest.mark.parametrize("epoch", [1, 2**53 + 1, MAX_EPOCH])
def test_a_record_survives_redis_with_all_64_bits_of_its_epoch(epoch: int) -> None:
    record = replace(RECORD, epoch=epoch)
    assert WorkerRecord.from_fields("prefill-0", as_redis_returns(record)) == record


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=10))
def test_random_fields_are_malformed_and_nothing_worse(values: list[object]) -> None:
    with pytest.raises(MalformedRecord):
        WorkerRecord.from_fields("prefill-0", values)


@given(st.integers(0, len(FIELDS) - 1), st.one_of(st.none(), st.binary(max_size=600)))
def test_one_random_field_gives_a_valid_record_or_is_malformed(index: int, value: object) -> None:
    values = as_redis_returns(RECORD)
    values[index] = value
    try:
        record = WorkerRecord.from_fields("prefill-0", values)
    except MalformedRecord:
        return
    assert as_redis_returns(record)[index] == value or str(value, "ascii").startswith("0")  # type: ignore[call-overload]


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"a\nb", b"x" * 513, 7])
def test_a_worker_id_is_short_printable_text(value: object) -> None:
    with pytest.raises(MalformedRecord):
        decode_worker_id(value)


def test_two_starts_have_different_epochs() -> None:
    epochs = {new_epoch() for _ in range(1000)}
    assert len(epochs) == 1000 and all(0 < epoch < 2**63 for epoch in epochs)


def test_redis_keys_are_equal_in_every_process() -> None:
    code = (
        "from octavo.registry.keys import ModelKeys;"
        f"print(ModelKeys.of('{FINGERPRINT}').block(b'k').decode())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {ModelKeys.of(FINGERPRINT).block(b"k") + b"\n"}
