"""What a pod's volumes hold: claims, empty folders, and Secrets as the kubelet lays them out."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Storage:
    """What volumes mean here: claims by name, Secrets by name and key, the hosts file."""

    claims: dict[str, Path]
    secrets: dict[str, dict[str, bytes]]
    hosts: Path

    def lay(self, volume: Any, folder: Path, group: int) -> Path:
        """The folder behind a volume of a pod, with the rights that the kubelet gives it."""
        if "persistentVolumeClaim" in volume:
            return self.claims[volume["persistentVolumeClaim"]["claimName"]]
        folder.mkdir(parents=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2777)
        if "secret" in volume:
            self.lay_secret(volume["secret"], folder, group)
        return folder

    def lay_secret(self, secret: Any, folder: Path, group: int) -> None:
        """Also anew: all files change at once, as the link to their folder does.

        tls.crt -> ..data/tls.crt, ..data -> ..1700000000/
        """
        data = folder / f"..{time.time_ns()}"
        data.mkdir()
        for key, value in self.secrets[secret["secretName"]].items():
            (data / key).write_bytes(value)
            (data / key).chmod(secret.get("defaultMode", 0o644))
            os.chown(data / key, 0, group)
            if not (folder / key).is_symlink():
                (folder / key).symlink_to(f"..data/{key}")
        link = folder / "..data_tmp"
        link.symlink_to(data.name)
        link.rename(folder / "..data")
