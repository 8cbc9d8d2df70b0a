"""From the name of a model to a folder with config.json, tokenizer and safetensors.

local folder  -> as it is
*.gguf file   -> converted once into the local cache
demo model    -> fetched once into the local cache
owner/name    -> downloaded by huggingface_hub (its cache, its settings)
"""

import re
from pathlib import Path

from octavo.checkpoint.config import CONFIG
from octavo.checkpoint.errors import ModelNotFound
from octavo.checkpoint.progress import ProgressCallback, silent

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# No pickles: weights come as safetensors or not at all.
HUB_IGNORED = ["*/*", "consolidated*"]  # the same weights once more, in other formats
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]


def resolve_model(name: str, *, progress: ProgressCallback | None = None) -> Path:
    """The folder of the model called name.

    Raises:
        ModelNotFound: nothing of that name exists here or on the hub.
        CheckpointError: it exists and cannot be converted.
    """
    from octavo.demo import DEMO_MODEL, fetch_demo

    report = progress or silent
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / CONFIG).exists():
            raise ModelNotFound(f"the folder {path} has no {CONFIG}")
        return path
    if path.suffix.lower() == ".gguf":
        from octavo.checkpoint.gguf import convert_gguf

        if not path.is_file():
            raise ModelNotFound(f"the file {path} does not exist")
        return convert_gguf(path, report)
    if name.lower() == DEMO_MODEL:
        return fetch_demo(report)
    if HUB_ID.fullmatch(name):
        return _download(name, report)
    raise ModelNotFound(
        f"{name!r} is no folder, no .gguf file, not {DEMO_MODEL!r} and no hub id (owner/name)"
    )


def _download(hub_id: str, report: ProgressCallback) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    report(f"Looking up {hub_id}", 0, 0)  # huggingface_hub draws its own bars from here on
    try:
        return Path(
            snapshot_download(hub_id, allow_patterns=HUB_FILES, ignore_patterns=HUB_IGNORED)
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFound(
            f"{hub_id!r} is no local folder and the hub did not give it: {error}"
        ) from error
