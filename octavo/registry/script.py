"""A Lua script and its digest, loaded from the package."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha1: str


def _load(name: str) -> Script:
    text = (files("octavo.registry") / "scripts" / f"{name}.lua").read_text("utf-8")
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


REGISTER = _load("register")
RENEW = _load("renew")
UNREGISTER = _load("unregister")
PUBLISH = _load("publish")
REMOVE = _load("remove")
LOOKUP = _load("lookup")
READ_WORKERS = _load("read_workers")
