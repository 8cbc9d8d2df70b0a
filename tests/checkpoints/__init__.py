"""Checkpoints that tests make for themselves, and what `transformers` says they should output."""

from checkpoints.circling import PHRASE, circling
from checkpoints.families import (
    tiny_llama,
    tiny_mistral,
    tiny_qwen2,
    tiny_qwen3,
)
from checkpoints.reference import Reference, reference_generate, reference_logits, reference_run
from checkpoints.scripted import scripted
from checkpoints.tokenizer import tiny_tokenizer, write_tokenizer

FAMILIES = {
    "llama": tiny_llama,
    "mistral": tiny_mistral,
    "qwen2": tiny_qwen2,
    "qwen3": tiny_qwen3,
}

__all__ = [
    "FAMILIES",
    "PHRASE",
    "Reference",
    "circling",
    "reference_generate",
    "reference_logits",
    "reference_run",
    "scripted",
    "tiny_llama",
    "tiny_mistral",
    "tiny_qwen2",
    "tiny_qwen3",
    "tiny_tokenizer",
    "write_tokenizer",
]
