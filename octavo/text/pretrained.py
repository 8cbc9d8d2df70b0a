"""The transformers tokenizer of a checkpoint folder, found without importing torch.

`AutoTokenizer` would import torch through the model configurations, so the class it would choose
is looked up here by name.
"""

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizerFast


class UnsupportedTokenizer(ValueError):
    """A checkpoint has no tokenizer that can be read here."""


def load_pretrained(path: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer, chat template and special tokens that `AutoTokenizer` would.

    Raises:
        UnsupportedTokenizer: the folder has no tokenizer.json.
    """
    if not (path / "tokenizer.json").is_file():
        raise UnsupportedTokenizer(
            f"{path} has no tokenizer.json; save the tokenizer with transformers' save_pretrained"
        )
    pretrained: PreTrainedTokenizerFast = _tokenizer_class(path).from_pretrained(
        path, local_files_only=True
    )
    # Once set here, nothing changes the backend again: encoding is safe from any thread.
    pretrained.backend_tokenizer.no_truncation()
    pretrained.backend_tokenizer.no_padding()
    pretrained.backend_tokenizer.encode_special_tokens = False
    return pretrained


def _tokenizer_class(path: Path) -> type[PreTrainedTokenizerFast]:
    """Choose as `AutoTokenizer` does among the class that the checkpoint names and tokenizer.json.

    LlamaTokenizer rebuilds the pipeline as SentencePiece has it, which is wrong for byte-level
    vocabularies, and which transformers does not do for Mistral models.
    """
    name = str(_read(path / "tokenizer_config.json").get("tokenizer_class", ""))
    name = name.removesuffix("Fast")
    if name == "LlamaTokenizer":
        is_mistral = "mistral" in str(_read(path / "config.json").get("model_type", ""))
        if is_mistral or '"ByteLevel"' in (path / "tokenizer.json").read_text(encoding="utf-8"):
            return PreTrainedTokenizerFast
    named = getattr(transformers, name, None) if name else None
    if isinstance(named, type) and issubclass(named, PreTrainedTokenizerFast):
        return named
    return PreTrainedTokenizerFast


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}
