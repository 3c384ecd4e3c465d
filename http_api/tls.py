"""The server's certificate: one that was given, or a self-signed one, made once and kept."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .config import ConfigError, Server

DAYS = 3650


def context(server: Server, home: Path) -> ssl.SSLContext | None:
    """For aiohttp; None: plain http. `home`: the folder where an own certificate is kept. Raises ConfigError."""
    if server.tls_cert:
        cert, key = Path(server.tls_cert), Path(server.tls_key)
    elif server.tls == "auto":
        cert, key = self_signed(home, (server.host, *server.allowed_hosts))
    else:
        return None
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        made.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"server.tls_cert {cert}, server.tls_key {key}: {problem}") from None
    return made


def self_signed(home: Path, names: tuple[str, ...]) -> tuple[Path, Path]:
    """Certificate and key in `home`, made where they are missing, expired, or lack one of the names."""
    cert_file, key_file = home / "certificate.pem", home / "key.pem"
    wanted = {n for n in names if n not in ("", "*", "0.0.0.0", "::")} | {"localhost", socket.gethostname()}
    if cert_file.exists() and key_file.exists() and _still_good(cert_file, wanted):
        return cert_file, key_file
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bargein")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_name(n) for n in sorted(wanted | {"127.0.0.1", "::1"})]), False)
        .sign(key, hashes.SHA256())
    )
    home.mkdir(parents=True, exist_ok=True)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(private)
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return cert_file, key_file


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _still_good(file: Path, wanted: set[str]) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError:
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    held = {str(n.value) for n in names}
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=7)
    return wanted <= held and certificate.not_valid_after_utc > soon
