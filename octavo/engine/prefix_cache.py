"""Finds blocks of KV by what they were computed from.

    root <-- block 0 <-- block 1 <-- block 2        an entry names its parent by serial number
      |                     ^
      +-- key(i) = H(key(i-1), token ids of block i) finds the entry, and never vouches for it

A hit counts only if token ids, parent and group are equal to what is stored, so that a weak or
broken hash costs a miss and never gives one prompt another's KV.
"""

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass

from octavo.block_key import BlockKey, block_key
from octavo.engine.block_pool import BlockPool
from octavo.engine.sequence import Sequence

KeyFunction = Callable[[bytes, BlockKey, Ids[int]], BlockKey]
ROOT_SERIAL = 0


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One findable block."""

    key: BlockKey
    block_id: int
    serial: int  # never used twice, unlike block ids
    parent_serial: int  # ROOT_SERIAL for a prompt's first block
    group_key: bytes
    root: BlockKey
    token_ids: bytes  # little-endian u32


class PrefixCache:
    """Names full blocks of the pool; registered blocks are never written again."""

    def __init__(
        self, pool: BlockPool, block_size: int, key_function: KeyFunction = block_key
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._key_function = key_function
        self._by_key: dict[BlockKey, Entry] = {}
        self._by_block: dict[int, Entry] = {}
        self._live_serials: set[int] = {ROOT_SERIAL}
        self._last_serial = ROOT_SERIAL
        self._changes: dict[BlockKey, bool] = {}  # since the last drain: True if stored
        self.num_collisions = 0
        self.num_stored = 0
        pool.on_evict = self._forget

    def __len__(self) -> int:
        return len(self._by_key)

    def match(
        self,
        group_key: bytes,
        root: BlockKey,
        token_ids: list[int],
        max_blocks: int,
        keys: list[BlockKey] | None = None,
    ) -> list[int]:
        """Block ids of the longest cached prefix of `token_ids`; takes no reference.

        Args:
            max_blocks: where to stop, at most the number of full blocks.
            keys: keys of the leading blocks known so far; extended by those computed here.
        """
        keys = [] if keys is None else keys
        block_ids: list[int] = []
        parent_serial = ROOT_SERIAL
        for index in range(min(max_blocks, len(token_ids) // self._block_size)):
            key = self._key(group_key, root, token_ids, index, keys)
            entry = self._by_key.get(key)
            if entry is None:
                break
            wanted = (parent_serial, group_key, root, self._packed(token_ids, index))
            if not self._is_same(entry, wanted):
                break
            block_ids.append(entry.block_id)
            parent_serial = entry.serial
        return block_ids

    def settle(self, seq: Sequence, num_before: int) -> None:
        """Register the blocks that filled up since num_before tokens, and free duplicates."""
        block_size = self._block_size
        if seq.num_computed_tokens // block_size == num_before // block_size and num_before:
            return
        # A lease's reader may be in the middle of a block that an earlier output showed as written.
        num_shown = -(-num_before // block_size) if seq.is_leased else 0
        shown = set(seq.block_ids[:num_shown])
        duplicates = self.commit(seq)
        seq.retired_block_ids += [block_id for block_id in duplicates if block_id in shown]
        self._pool.free([block_id for block_id in duplicates if block_id not in shown])

    def commit(self, seq: Sequence) -> list[int]:
        """Register the full computed blocks of a sequence, each only if its parent is.

        Where an equal block is registered already the table takes that one, so that equal
        prefixes are the same physical blocks. Returns the duplicates that left the table; the
        sequence's reference to them is now the caller's to drop.
        """
        duplicates: list[int] = []
        num_full = seq.num_computed_tokens // self._block_size
        while seq.num_registered_blocks < num_full:
            index = seq.num_registered_blocks
            block_id = self._register(seq, index)
            if block_id is None:
                break
            if block_id != seq.block_ids[index]:
                self._pool.touch([block_id])
                duplicates.append(seq.block_ids[index])
                seq.replace_block(index, block_id)
            seq.num_registered_blocks += 1
        return duplicates

    def keys(self) -> list[BlockKey]:
        """Every key that can be found now."""
        return list(self._by_key)

    def drain_events(self) -> tuple[list[BlockKey], list[BlockKey]]:
        """Keys (stored, removed) since the last call; of two changes of a key the last counts."""
        changes, self._changes = self._changes, {}
        stored = [key for key, is_stored in changes.items() if is_stored]
        removed = [key for key, is_stored in changes.items() if not is_stored]
        return stored, removed

    def _register(self, seq: Sequence, index: int) -> int | None:
        """The block that the table must hold at `index`; None if it cannot be registered."""
        parent_serial = ROOT_SERIAL
        if index > 0:
            parent = self._by_block.get(seq.block_ids[index - 1])
            if parent is None:
                return None
            parent_serial = parent.serial
        key = self._key(seq.group_key, seq.root_key, seq.token_ids, index, seq.block_keys)
        packed = self._packed(seq.token_ids, index)
        wanted = (parent_serial, seq.group_key, seq.root_key, packed)
        found = self._by_key.get(key)
        if found is not None:
            if self._is_same(found, wanted):
                return found.block_id
            if found.parent_serial in self._live_serials:
                return None
            # An orphan: its parent was evicted, so no match can reach it any more.
            self._pool.unname(found.block_id)
            self._forget(found.block_id)
        self._last_serial += 1
        block_id = seq.block_ids[index]
        self._store(Entry(key, block_id, self._last_serial, *wanted))
        return block_id

    def _store(self, entry: Entry) -> None:
        self._by_key[entry.key] = self._by_block[entry.block_id] = entry
        self._live_serials.add(entry.serial)
        self._changes[entry.key] = True
        self._pool.name(entry.block_id)
        self.num_stored += 1

    def _forget(self, block_id: int) -> None:
        entry = self._by_block.pop(block_id)
        del self._by_key[entry.key]
        self._live_serials.discard(entry.serial)
        self._changes[entry.key] = False

    def _is_same(self, entry: Entry, wanted: tuple[int, bytes, BlockKey, bytes]) -> bool:
        if (entry.parent_serial, entry.group_key, entry.root, entry.token_ids) == wanted:
            return True
        if entry.parent_serial in self._live_serials:
            self.num_collisions += 1
        return False

    def _key(
        self,
        group_key: bytes,
        root: BlockKey,
        token_ids: list[int],
        index: int,
        keys: list[BlockKey],
    ) -> BlockKey:
        while len(keys) <= index:
            start = len(keys) * self._block_size
            block = token_ids[start : start + self._block_size]
            keys.append(self._key_function(group_key, keys[-1] if keys else root, block))
        return keys[index]

    def _packed(self, token_ids: list[int], index: int) -> bytes:
        start = index * self._block_size
        return array("I", token_ids[start : start + self._block_size]).tobytes()
