"""Does what `docker build` would do, where no container engine is: every step in a bare root.

    python deploy/image/rehearse.py ROOT FOLDER TARGET [--bind PATH ...] [--arg NAME=VALUE ...]

ROOT is a bare Debian with Python 3.11 and its headers (debootstrap --variant=minbase
--include=python3-venv,libpython3-dev,python-is-python3,ca-certificates bookworm ROOT), FOLDER gets
a folder a stage (remove those that are to be made anew) and in each image.json: what the image's
settings would be.
Needs root on Linux. --bind shows build steps a path of this machine (package caches,
certificates); no image keeps it.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

CONTEXT = Path(__file__).parents[2]
DOCKERFILE = Path(__file__).with_name("Dockerfile")
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")
STEP_S = 1800


@dataclass
class Stage:
    """A FROM and what follows it."""

    name: str
    parent: str
    steps: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Settings:
    """What an image is told beside its files."""

    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)


def read_stages(text: str) -> tuple[dict[str, str], dict[str, Stage]]:
    """Global arguments, and stages by name in their order."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            parent, _, name = rest.split()
            stages[name] = Stage(name, parent)
        elif not stages and word == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
        else:
            list(stages.values())[-1].steps.append((word, rest.strip()))
    return arguments, stages


class Rehearsal:
    """Makes stages of a bare root, each in a folder of its own, unless it is there already."""

    def __init__(self, root: Path, folder: Path, binds: list[Path], given: dict[str, str]) -> None:
        self._folder = folder
        self._binds = binds
        self._given = given
        self._settings: dict[str, Settings] = {"${PYTHON_IMAGE}": Settings(env={"PATH": _PATH})}
        self._roots = {"${PYTHON_IMAGE}": root}
        _, self._stages = read_stages(DOCKERFILE.read_text())

    def make(self, name: str) -> tuple[Path, Settings]:
        """The stage's files and settings."""
        if name in self._roots:
            return self._roots[name], self._settings[name]
        stage = self._stages[name]
        root = self._folder / name
        done = root / "image.json"
        if done.exists():
            self._roots[name], self._settings[name] = root, Settings(**json.loads(done.read_text()))
            return self._roots[name], self._settings[name]
        parent_root, parent = self.make(stage.parent)
        print(f"=== {name} FROM {stage.parent}", flush=True)
        root.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", f"{parent_root}/.", root], check=True)
        done.unlink(missing_ok=True)  # the parent's
        settings = Settings(
            dict(parent.env), parent.workdir, parent.user, parent.entrypoint, parent.cmd
        )
        arguments: dict[str, str] = {}
        for word, rest in stage.steps:
            self._step(root, settings, arguments, word, rest)
        done.write_text(json.dumps(vars(settings), indent=2) + "\n")
        self._roots[name], self._settings[name] = root, settings
        return root, settings

    def _step(
        self, root: Path, settings: Settings, arguments: dict[str, str], word: str, rest: str
    ) -> None:
        print(f"--- {word} {rest}", flush=True)
        match word:
            case "ARG":
                key, _, value = rest.partition("=")
                arguments[key] = self._given.get(key, value.strip('"'))
            case "ENV":
                for part in shlex.split(rest):
                    key, _, value = part.partition("=")
                    settings.env[key] = value.replace("$PATH", settings.env["PATH"])
            case "WORKDIR":
                settings.workdir = rest
                (root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                settings.user = rest
            case "ENTRYPOINT":
                settings.entrypoint = json.loads(rest)
            case "CMD":
                settings.cmd = json.loads(rest)
            case "COPY":
                self._copy(root, settings, rest)
            case "RUN":
                self._run(root, settings, arguments, rest)
            case "EXPOSE" | "STOPSIGNAL":
                pass
            case _:
                raise ValueError(f"no such instruction is known: {word}")

    def _copy(self, root: Path, settings: Settings, rest: str) -> None:
        words = rest.split()
        options = dict(word[2:].split("=") for word in words if word.startswith("--"))
        *sources, target = [word for word in words if not word.startswith("--")]
        base, ignored = CONTEXT, IGNORED
        if "from" in options:
            base, ignored = self.make(options["from"])[0], None
        into = root / os.path.join(settings.workdir, target).lstrip("/")
        for source in sources:
            path = base / source.lstrip("/")
            is_folder = target.endswith("/") or target in (".", "./")
            goal = into / path.name if is_folder else into
            if path.is_dir():
                shutil.copytree(path, goal, symlinks=True, ignore=ignored, dirs_exist_ok=True)
            else:
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, goal)
            if "chmod" in options:
                goal.chmod(int(options["chmod"], 8))

    def _run(self, root: Path, settings: Settings, arguments: dict[str, str], command: str) -> None:
        """In a mount namespace of its own, so that what is bound is gone with it."""
        lines = ["set -e"]
        for path in (Path("/proc"), Path("/dev"), Path("/etc/resolv.conf"), *self._binds):
            goal = root / str(path).lstrip("/")
            make = f"mkdir -p {goal}" if path.is_dir() else f"mkdir -p {goal.parent}; touch {goal}"
            lines.append(f"{make}; mount --rbind {path} {goal}")
        lines.append(f"cd {root}{settings.workdir}")
        lines.append('exec chroot "$0" /bin/sh -ec "cd $1; $2"')
        ours = {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}
        subprocess.run(
            ["unshare", "--mount", "sh", "-c", "\n".join(lines), root, settings.workdir, command],
            env=ours | settings.env | arguments | {"HOME": "/root"},
            check=True,
            timeout=STEP_S,
        )


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> None:
    parser = argparse.ArgumentParser(description="Rehearses an image's build.")
    parser.add_argument("root", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("target")
    parser.add_argument("--bind", type=Path, action="append", default=[])
    parser.add_argument("--arg", action="append", default=[])
    options = parser.parse_args()
    given = dict(part.split("=", 1) for part in options.arg)
    rehearsal = Rehearsal(options.root.resolve(), options.folder.resolve(), options.bind, given)
    root, settings = rehearsal.make(options.target)
    compilers = [name for name in ("gcc", "cc", "clang", "g++", "tcc") if _has(root, name)]
    if compilers:
        sys.exit(f"the image has compilers: {', '.join(compilers)}")
    print(f"{options.target}: {settings}")


def _has(root: Path, program: str) -> bool:
    folders = [*_PATH.split(":"), "/opt/octavo/bin"]
    return any((root / folder.lstrip("/") / program).exists() for folder in folders)


if __name__ == "__main__":
    main()
