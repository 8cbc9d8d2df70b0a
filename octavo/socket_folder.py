"""Private folders for unix sockets, whose paths the system keeps short.

sockaddr_un has room for 104 bytes on macOS and 108 on Linux, a final zero included.
"""

import os
import tempfile
from pathlib import Path

MAX_PATH_BYTES = 103
LONGEST_NAME = "/prefill-63.sock"
RANDOM_BYTES = 8  # that mkdtemp appends


def make_socket_folder(prefix: str) -> Path:
    """A new folder for this user alone, in /tmp where the usual place is too deep for sockets."""
    place = tempfile.gettempdir()
    if not _fits(os.path.join(place, prefix + "x" * RANDOM_BYTES)):
        place = "/tmp"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=place))


def check_socket_folder(folder: Path, name: str) -> None:
    """Raise ValueError if sockets in this folder, the setting `name`, would have no address."""
    if not _fits(str(folder)):
        raise ValueError(
            f"{name} must be at most {MAX_PATH_BYTES - len(LONGEST_NAME)} bytes long, as sockets "
            f"are in it; {folder} has {len(os.fsencode(folder))}"
        )


def _fits(folder: str) -> bool:
    return len(os.fsencode(folder)) + len(LONGEST_NAME) <= MAX_PATH_BYTES
