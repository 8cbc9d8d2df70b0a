"""Certificates made for a test."""

from pathlib import Path

import trustme


def write_folder(folder: Path, authority: trustme.CA, *names: str) -> Path:
    """tls.crt, tls.key and ca.crt of these names; replaces what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    issued = authority.issue_cert(*names)
    issued.private_key_pem.write_to_path(folder / "tls.key")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    (folder / "tls.crt").write_bytes(chain)
    authority.cert_pem.write_to_path(folder / "ca.crt")
    return folder
