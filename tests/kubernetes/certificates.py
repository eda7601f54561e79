"""A certificate authority for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["make_certificate"]


def make_certificate(folder: Path, host: str = "localhost") -> Path:
    """Write tls.crt and tls.key for a host and ca.crt, a CA of their own; return the CA's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ext").write_text(f"subjectAltName=DNS:{host},DNS:localhost,IP:127.0.0.1")
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout"]
    _run(folder, *new, "ca.key", "-x509", "-out", "ca.crt", "-days", "2", "-subj", f"/CN=ca of {host}")
    _run(folder, *new, "tls.key", "-out", "tls.csr", "-subj", f"/CN={host}")
    _run(
        folder, "openssl", "x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-out", "tls.crt", "-days", "2", "-extfile", "ext",
    )  # fmt: skip
    return folder / "ca.crt"


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
