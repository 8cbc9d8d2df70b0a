"""Which addresses other machines can reach, and that nobody opens one by mistake."""

import ipaddress

NO_ADDRESS = "none"


def is_address(address: str | None) -> bool:
    """Whether a setting names an address, and not nowhere."""
    return address not in (None, NO_ADDRESS)


def check_host_port(address: str, field: str) -> None:
    """Raise ValueError, naming the setting, unless HTTP could be served there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{field} must be host:port or {NO_ADDRESS}, got {address!r}")


def is_local(address: str) -> bool:
    """Whether only this machine reaches `host:port` or `unix:path`."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or nothing, which is every address
        return False


def check_plaintext(address: str, insecure: bool, how: str, field: str = "listen_address") -> None:
    """Refuse to serve without encryption where other machines can reach it, unless asked to.

    how: the settings that would encrypt it; field: the setting that it is.

    Raises:
        ValueError: names the address, and what to do.
    """
    if not insecure and not is_local(address):
        raise ValueError(
            f"{field} {address} can be reached from other machines without encryption: "
            f"give {how}, or --insecure where the network is trusted"
        )
