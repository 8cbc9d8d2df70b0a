"""The import rules of ARCHITECTURE.md, checked from the source text."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WIRE = {
    "inference",
    "internal",
    "rpc",
    "prompt_limits",
    "sampling_params",
    "token_logprobs",
    "block_key",
    "histogram",
}
SERVICE = WIRE | {"registry", "config", "checkpoint", "logs", "metrics"}
MAY_IMPORT = {
    "kernels": set[str](),
    "octavo/checkpoint": {"demo"},
    "octavo/engine": {
        "kernels",
        "checkpoint",
        "grammar",
        "prompt_limits",
        "sampling_params",
        "token_logprobs",
        "block_key",
        "histogram",
    },
    "octavo/grammar": {"histogram", "text"},
    "octavo/metrics": {"grammar", "histogram", "rpc"},
    "octavo/text": {"sampling_params"},
    "octavo/registry": {"block_key", "histogram", "socket_folder"},
    "octavo/rpc": {"inference", "internal", "sampling_params", "token_logprobs", "text"},
    "octavo/top": {"client", "inference", "rpc"},
    "octavo/transfer": WIRE | {"engine"},
    "router": SERVICE | {"grammar", "ranking", "text"},
    "prefill_worker": SERVICE | {"engine", "grammar", "transfer", "worker"},
    "decode_worker": SERVICE | {"engine", "grammar", "transfer", "worker"},
}
FOREIGN = {
    "kernels": {"grpc", "google", "redis", "transformers"},
    "octavo/engine": {"grpc", "google", "redis", "prometheus_client"},
    "octavo/grammar": {"grpc", "google", "redis", "torch", "transformers"},
    "octavo/metrics": {"redis", "torch"},
    "octavo/text": {"grpc", "google", "redis", "torch"},
    "octavo/registry": {"grpc", "google", "torch"},
    "octavo/rpc": {"redis", "torch"},
    "router": {"torch", "triton", "numba", "redis"},
    "prefill_worker": {"redis"},
    "decode_worker": {"redis"},
}


def imported_modules(path: Path) -> list[str]:
    modules: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            modules += [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    return modules


def sources(folder: str) -> list[Path]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths, f"{folder} holds no source"
    return paths


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_imports_only_what_it_may(folder: str) -> None:
    allowed = MAY_IMPORT[folder] | {Path(folder).name}
    for path in sources(folder):
        parts = {
            name.split(".")[1] for name in imported_modules(path) if name.startswith("octavo.")
        }
        assert parts - {"__version__"} <= allowed, path


@pytest.mark.parametrize("folder", FOREIGN)
def test_folder_leaves_foreign_libraries_alone(folder: str) -> None:
    for path in sources(folder):
        tops = {name.split(".")[0] for name in imported_modules(path)}
        assert not tops & FOREIGN[folder], path


def test_what_a_router_or_client_imports_leaves_torch_out() -> None:
    modules = (
        "octavo",
        "octavo.client",
        "octavo.text.tokenizer",
        "octavo.cli.commands",
        "octavo.router.server",
    )
    code = "import importlib, sys\n" + "".join(
        f"importlib.import_module({module!r}); assert 'torch' not in sys.modules, {module!r}\n"
        for module in modules
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_linked_folders_have_no_package_file() -> None:
    """A root `kernels/__init__.py` would be imported by transformers, which probes that name."""
    for name in ("router", "prefill_worker", "decode_worker", "kernels"):
        assert not (ROOT / name / "__init__.py").exists()
        assert (ROOT / "octavo" / name).resolve() == ROOT / name


def test_nothing_unpickles() -> None:
    for path in sources("octavo") + sources("kernels"):
        names = imported_modules(path)
        assert not {n.split(".")[0] for n in names} & {"pickle", "marshal", "shelve"}, path
        assert "torch.load(" not in path.read_text(encoding="utf-8"), path
