"""Certificates made on the spot with the openssl command: an authority, and a server it vouches for."""

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

OPENSSL = shutil.which("openssl")


@dataclass(frozen=True)
class Certificates:
    ca_file: str
    server: ssl.SSLContext
    """For `localhost` and 127.0.0.1, signed by the authority."""


def make(folder: Path) -> Certificates:
    ca_key, ca, key, request, cert = (
        str(folder / name) for name in ("ca.key", "ca.pem", "s.key", "s.csr", "s.pem")
    )
    names = folder / "names"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _openssl(
        "req", "-x509", *new_key, "-keyout", ca_key, "-out", ca, "-days", "2", "-subj", "/CN=Test authority"
    )
    _openssl("req", "-new", *new_key, "-keyout", key, "-out", request, "-subj", "/CN=localhost")
    signing = ["-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2", "-extfile", str(names)]
    _openssl("x509", "-req", "-in", request, "-out", cert, *signing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return Certificates(ca, context)


def _openssl(*arguments: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], check=True, capture_output=True)
