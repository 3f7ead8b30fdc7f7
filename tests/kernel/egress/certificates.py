"""An authority made for a test, and what it certifies. Whoever trusts it trusts a loopback server for a moment."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Authority:
    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, folder: Path) -> "Authority":
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        draft = _draft(name, name, key.public_key())
        uses = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        authority = cls(folder, key, draft.add_extension(uses, critical=True).sign(key, hashes.SHA256()))
        authority.file.write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    @property
    def file(self) -> Path:
        return self.folder / "authority.pem"

    def server(self, *names: str) -> ssl.SSLContext:
        """The server's side, for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        others = [x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names]
        draft = _draft(subject, self.certificate.subject, key.public_key())
        draft = draft.add_extension(x509.SubjectAlternativeName(others), critical=False)
        certificate = draft.sign(self.key, hashes.SHA256())
        both = self.folder / f"{names[0]}.pem"
        plain = serialization.NoEncryption()
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        both.write_bytes(key.private_bytes(pem, form, plain) + certificate.public_bytes(pem))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(both)
        return context

    def client(self) -> ssl.SSLContext:
        """Of whoever trusts this authority and no other."""
        return ssl.create_default_context(cafile=str(self.file))


def _draft(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer,
        subject,
        key,
        x509.random_serial_number(),
        now - timedelta(hours=1),
        now + timedelta(days=1),
    )
