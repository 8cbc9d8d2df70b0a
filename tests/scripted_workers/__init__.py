"""Prefill and decode workers without an engine: real servers that answer with given tokens.

They speak the internal protocol as the real ones do, and stop, refuse, die or get stuck on demand.
"""

from scripted_workers.worker import (
    BLOCK_SIZE,
    EOS,
    Handover,
    ScriptedDecodeWorker,
    ScriptedPrefillWorker,
    ScriptedWorker,
)

__all__ = [
    "BLOCK_SIZE",
    "EOS",
    "Handover",
    "ScriptedDecodeWorker",
    "ScriptedPrefillWorker",
    "ScriptedWorker",
]
