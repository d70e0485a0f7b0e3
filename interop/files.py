"""The files that the origins serve, and the certificates of all servers."""

import base64
import hashlib
import os
import random
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

CACHE = Path(__file__).parent / ".cache"
BIN = CACHE / "bin"
OWN = CACHE / os.environ.get("INTEROP_SCRIPT", "run")  # several scripts may run at the same time
ROOT = OWN / "www"
CA, CERT, KEY = OWN / "ca.pem", OWN / "cert.pem", OWN / "key.pem"

PAGE, MEDIUM, LARGE, HUGE = "page.html", "5MB.bin", "20MB.bin", "50MB.bin"


def make() -> None:
    """Makes new files and certificates for each run."""
    ROOT.mkdir(parents=True, exist_ok=True)
    (ROOT / PAGE).write_text("<!doctype html><title>It came</title><p>through the tunnel\n")
    for name, length in ((MEDIUM, 5_000_000), (LARGE, 20_000_000), (HUGE, 50_000_000)):
        (ROOT / name).write_bytes(random.randbytes(length))
    make_certificates()


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def fingerprint(certificate: Path) -> str:
    """Returns the SHA-256 of the certificate's public key, in base64."""
    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    encoded = key.public_bytes(serialization.Encoding.DER, form)
    return base64.b64encode(hashlib.sha256(encoded).digest()).decode()


def make_certificates() -> None:
    """Makes one CA, and one certificate for all servers."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = name("interop CA")
    ca = builder(ca_name, ca_name, ca_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    # The last ones are those of the proxy of programs/, of the origin of benchmarks/existing-servers, and of the service
    # and the origin of fleet/.
    others = ("10.79.1.2", "10.78.1.2", "10.66.0.1", "10.66.8.2")
    addresses = map(ip_address, ("127.0.0.1", "::1", *others))
    names = [x509.DNSName(host) for host in ("localhost", "proxy.test", "origin.test")]
    names += [x509.IPAddress(address) for address in addresses]
    leaf = (
        builder(name("interop server"), ca_name, key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    for path, certificate in ((CA, ca), (CERT, leaf)):
        signed = certificate.sign(ca_key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    KEY.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def builder(subject: x509.Name, issuer: x509.Name, key) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=7))
    )
