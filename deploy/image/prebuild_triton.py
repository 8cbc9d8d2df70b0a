"""Compiles the C module that Triton's NVIDIA driver asks a compiler for, into a folder.

    prebuild_triton.py FOLDER  -->  FOLDER/<sha256 of the source>.so, which prebuilt-cc gives out

The driver's library is not there while an image is built: a stand-in of the same name is linked. It
has no symbols, so the linker must be told to keep it among those that the module loads.
"""

import hashlib
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from triton.backends.nvidia import driver


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(driver.dirname) / "driver.c"
    target = folder / f"{hashlib.sha256(source.read_bytes()).hexdigest()}.so"
    includes = [*driver.include_dirs, sysconfig.get_paths()["include"]]
    with tempfile.TemporaryDirectory() as name:
        for library in driver.libraries:
            stub = ["-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{library}"]
            subprocess.run(["gcc", *stub, "-o", f"{name}/{library}"], check=True)
        command = ["gcc", str(source), "-O3", "-shared", "-fPIC", "-Wno-psabi", "-o", str(target)]
        command += ["-Wl,--no-as-needed", *(f"-l:{library}" for library in driver.libraries)]
        command += [f"-L{path}" for path in (name, driver.libdevice_dir)]
        command += [f"-I{path}" for path in includes]
        subprocess.run(command, check=True)
    print(target)


if __name__ == "__main__":
    main()
