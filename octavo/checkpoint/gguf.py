"""Converts a GGUF file, once, into a folder like any other model's.

    model.gguf --metadata--> config.json, generation_config.json
               --tokenizer-> tokenizer.json, tokenizer_config.json, chat_template.jinja
               --tensors---> model.safetensors        (dequantised to float32, with the name of
                                                    their type; f16 and bf16 as is)

The folder lies in the local cache under the file's path, size and time of change. A later start
reads it like a downloaded checkpoint, and a router needs neither torch nor the GGUF file.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from octavo.checkpoint.cache import build_once, cache_dir
from octavo.checkpoint.config import CONFIG
from octavo.checkpoint.errors import CheckpointError
from octavo.checkpoint.fields import Fields
from octavo.checkpoint.generation import GENERATION_CONFIG
from octavo.checkpoint.gguf_config import gguf_config, gguf_generation
from octavo.checkpoint.gguf_metadata import read_metadata
from octavo.checkpoint.gguf_tensors import write_tensors
from octavo.checkpoint.gguf_tokenizer import write_tokenizer
from octavo.checkpoint.progress import ProgressCallback, silent
from octavo.checkpoint.weights import SINGLE

# Part of the cache key: raise it when the same file would be converted differently.
CONVERTER_VERSION = 2


def convert_gguf(path: Path, progress: ProgressCallback = silent) -> Path:
    """The folder the file was converted to, now or before.

    Raises:
        UnsupportedModel: the architecture, a rope type or a tensor is none that Octavo knows.
        CheckpointError: the file is damaged.
    """
    target = cache_dir() / "gguf" / f"{path.stem}-{_state(path)}"
    return build_once(target, lambda folder: _convert(path, folder, progress))


def _state(path: Path) -> str:
    status = path.stat()
    state = (
        f"{CONVERTER_VERSION}\n{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}".encode()
    )
    return hashlib.blake2b(state, digest_size=8).hexdigest()


def _convert(path: Path, folder: Path, progress: ProgressCallback) -> None:
    reader = _open(path)
    metadata = read_metadata(reader, str(path))
    config = gguf_config(metadata, reader)
    folder.mkdir()
    _write_json(folder / CONFIG, config)
    _write_json(folder / GENERATION_CONFIG, gguf_generation(metadata))
    write_tokenizer(path, metadata, folder)
    write_tensors(reader, _permuted_heads(config), folder / SINGLE, progress)


def _permuted_heads(config: dict[str, object]) -> dict[str, int]:
    """Projections whose rows llama.cpp reorders, and how many heads they hold."""
    if config["model_type"] not in ("llama", "mistral"):
        return {}
    fields = Fields(config, CONFIG)
    return {
        "q_proj": fields.integer("num_attention_heads"),
        "k_proj": fields.integer("num_key_value_heads"),
    }


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise CheckpointError(f"{path} is no readable GGUF file: {error}") from error


def _write_json(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
