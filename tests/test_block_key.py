import itertools
import subprocess
import sys

from octavo.block_key import block_keys, group_key, prompt_digest, root_key

SECRET = b"s" * 32
GROUP = group_key(SECRET, "team", "")


def test_keys_chain_so_that_a_block_is_named_by_its_whole_prefix() -> None:
    root = root_key(GROUP, "model")
    one = block_keys(GROUP, root, [1, 2, 3, 4, 5, 6, 7, 8], 4)
    other = block_keys(GROUP, root, [9, 2, 3, 4, 5, 6, 7, 8], 4)
    assert len(one) == 2 and len({*one, *other}) == 4


def test_only_full_blocks_have_a_key() -> None:
    root = root_key(GROUP, "model")
    assert [len(block_keys(GROUP, root, list(range(n)), 4)) for n in (0, 3, 4, 7, 8)] == [
        0, 0, 1, 1, 2,
    ]  # fmt: skip
    assert block_keys(GROUP, root, [1, 2, 3, 4, 5], 4) == block_keys(GROUP, root, [1, 2, 3, 4], 4)


def test_group_salt_model_and_adapter_each_make_another_key() -> None:
    fields = ("", "X", "a|b", "a", "b", "\0", "emoji \N{OCTOPUS}")
    keys = [group_key(SECRET, group, salt) for group, salt in itertools.product(fields, fields)]
    assert len(set(keys)) == len(keys)
    roots = [
        root_key(GROUP, model, adapter) for model, adapter in itertools.product(fields, fields)
    ]
    assert len(set(roots)) == len(roots)


def test_ids_beyond_a_byte_or_two_differ() -> None:
    root = root_key(GROUP, "model")
    blocks = ([1, 0], [256, 0], [65536, 0], [1, 256], [2**32 - 1, 0])
    assert len({block_keys(GROUP, root, ids, 2)[0] for ids in blocks}) == len(blocks)


def test_keys_are_equal_in_another_process_whatever_its_hash_seed() -> None:
    code = (
        "from octavo.block_key import *; g = group_key(b's' * 32, 'team', '');"
        "print(block_keys(g, root_key(g, 'model'), list(range(32)), 16)[1].hex())"
    )
    expected = block_keys(GROUP, root_key(GROUP, "model"), list(range(32)), 16)[1].hex()
    for seed in ("0", "1", "random"):
        env = {"PYTHONHASHSEED": seed, "PATH": ""}
        out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        assert out.stdout.decode().strip() == expected


def test_prompt_digest_covers_the_last_partial_block() -> None:
    assert prompt_digest(GROUP, [1, 2, 3]) != prompt_digest(GROUP, [1, 2, 4])
    assert len(prompt_digest(GROUP, [1])) == 16


def test_prompt_digest_covers_the_adapter() -> None:
    digests = {prompt_digest(GROUP, [1, 2], adapter) for adapter in ("", "a", "b", "ab")}
    assert len(digests) == 4 and prompt_digest(GROUP, [1, 2]) in digests
