"""What the kernel says of a mapping of this process."""

import re
from pathlib import Path


def bytes_of(address: int, field: str) -> int:
    """Rss, AnonHugePages ... of the mapping that holds the address."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_inside = int(found[1], 16) <= address < int(found[2], 16)
        elif is_inside and line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
