"""The tokenizer of a GGUF file, read by `transformers` and saved in the usual files.

Where `transformers` does not know how the file's model cuts text before merging, the cut is set
here by the file's own name for it (tokenizer.ggml.pre).
"""

import json
import logging
from pathlib import Path
from typing import Any

from octavo.checkpoint.errors import CheckpointError
from octavo.checkpoint.gguf_metadata import GgufMetadata

BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
# tokenizer.ggml.pre -> what comes before the merges in tokenizer.json.
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    # Digits one by one, so that "  12" keeps its two spaces together.
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    },
    "gpt-2": BYTE_LEVEL,
    "default": BYTE_LEVEL,
}
# `transformers` has these itself.
KNOWN_ELSEWHERE = ("llama3", "llama-v3", "llama-bpe", "qwen2", "tekken", "deepseek-r1-qwen")

logger = logging.getLogger(__name__)


def write_tokenizer(path: Path, metadata: GgufMetadata, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and, where there is one, the chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        tokenizer.save_pretrained(str(folder))
    except (ValueError, KeyError, ImportError) as error:
        raise CheckpointError(f"{path}: the tokenizer cannot be converted: {error}") from error
    pre = metadata.fields.string("tokenizer.ggml.pre", "default")
    if metadata.fields.string("tokenizer.ggml.model", "") != "gpt2" or pre in KNOWN_ELSEWHERE:
        return
    if pre in PRE_TOKENIZERS:
        _set_pre_tokenizer(folder / "tokenizer.json", PRE_TOKENIZERS[pre])
    else:
        logger.warning("%s: text is cut as GPT-2 does; %r is not known", path, pre)


def _set_pre_tokenizer(file: Path, pre_tokenizer: dict[str, Any]) -> None:
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    tokenizer["pre_tokenizer"] = pre_tokenizer
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
