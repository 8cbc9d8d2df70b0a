"""A node of its own: `inside` starts a command in new namespaces, `prepare` makes a network.

10.244.0.1 bridge --- veth --- 10.244.0.2 pod      Everything ends with the command: processes,
10.96.0.N  addresses of Services, on loopback      addresses, mounts.
"""

import subprocess
from pathlib import Path

BRIDGE = "pods0"
NODE_IP = "10.244.0.1"
WORK = Path("/run/cluster")  # a tmpfs that only this node sees
RESOLVER = WORK / "resolv.conf"
_UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def inside(command: list[str]) -> list[str]:
    """The command, run as a node; needs root."""
    return [*_UNSHARE, *command]


def is_possible() -> bool:
    """Whether this machine lets us make namespaces and overlays."""
    probe = (
        "mount -t tmpfs none /run && mkdir /run/u /run/w /run/m && ip link add b0 type bridge && "
        "mount -t overlay o -o lowerdir=/,upperdir=/run/u,workdir=/run/w /run/m"
    )
    try:
        return not subprocess.run(inside(["sh", "-c", probe]), capture_output=True).returncode
    except FileNotFoundError:
        return False


def prepare() -> None:
    """Call once inside the node."""
    call("mount", "-t", "tmpfs", "none", "/run")
    WORK.mkdir()
    RESOLVER.write_text("nameserver 127.0.0.1\n")  # nobody: what no hosts file has fails at once
    Path("/run/netns").mkdir()
    call("ip", "link", "set", "lo", "up")
    call("ip", "link", "add", BRIDGE, "type", "bridge")
    call("ip", "addr", "add", f"{NODE_IP}/16", "dev", BRIDGE)
    call("ip", "link", "set", BRIDGE, "up")


def use_hosts(hosts: Path) -> None:
    """The node, and who asks from it, knows these names, too."""
    call("mount", "--bind", str(hosts), "/etc/hosts")


def add_service_address(ip: str) -> None:
    call("ip", "addr", "add", f"{ip}/32", "dev", "lo")


def add_pod_network(name: str, index: int) -> str:
    """A network namespace with one address, which is returned."""
    ip, veth = f"10.244.{index // 250}.{index % 250 + 2}", f"v{index}"
    call("ip", "netns", "add", name)
    call("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", name)
    call("ip", "link", "set", veth, "master", BRIDGE, "up")
    call("ip", "-n", name, "addr", "add", f"{ip}/16", "dev", "eth0")
    call("ip", "-n", name, "link", "set", "eth0", "up")
    call("ip", "-n", name, "link", "set", "lo", "up")
    call("ip", "-n", name, "route", "add", "default", "via", NODE_IP)
    return ip


def remove_pod_network(name: str) -> None:
    call("ip", "netns", "del", name)


def call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
