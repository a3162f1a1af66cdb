"""Certificates for servers of tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificate:
    """PEM files of a certificate of 127.0.0.1, its key, and the authority that signed it."""

    chain: Path
    key: Path
    authority: Path


def issue_certificate(folder: Path) -> Certificate:
    """A new certificate, of a new authority, in files of the folder."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = Certificate(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
    authority.cert_pem.write_to_path(files.authority)
    issued.private_key_pem.write_to_path(files.key)
    files.chain.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return files
