"""The certificate authorities of a job. Every process that holds the job's token derives the same ones.

No certificate travels before a connection exists, and nothing is stored: a launcher that is started again, and the next
coordinator, derive the authority again. A job has two: launchers trust ``CONTROL``, which orders the job; agents trust
``SNAPSHOTS``, which only reads snapshots. Ranks hold a certificate of the second alone, and never the token.

The key of an authority is scrypt(token, salt of job and authority) as a scalar of P-256. A caller sees the certificate
of a server before it must show its own, and can try tokens against it: the slow hash makes that 20 a second and core.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mainstay.recovery.job_tls import JobTls

_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_SCRYPT: Final = {"n": 1 << 14, "r": 8, "p": 1, "dklen": 48}
"""16 MiB and some 50 ms. 48 bytes: the remainder by the order of the curve is then uniform (FIPS 186-5, A.4.1)."""
_VALID_FROM: Final = datetime(2020, 1, 1, tzinfo=UTC)
_VALID_UNTIL: Final = datetime(2120, 1, 1, tzinfo=UTC)
"""Fixed, since the clocks of nodes differ. A job ends, and its token with it."""


class Authority(StrEnum):
    """What a certificate allows."""

    CONTROL = "control"
    """To be a launcher of the job."""
    SNAPSHOTS = "snapshots"
    """To read snapshots from agents."""


def issue_certificate(token: str, job: str, authority: Authority) -> str:
    """Return a new private key, its certificate, and the certificate of the authority, as PEM."""
    salt = f"mainstay {authority} {job}".encode()
    seed = int.from_bytes(hashlib.scrypt(token.encode(), salt=salt, **_SCRYPT), "big")
    signer = ec.derive_private_key(1 + seed % (_P256_ORDER - 1), ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"mainstay {authority}")])
    member = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"mainstay {authority} member")])
    root = _certificate(issuer, signer.public_key(), issuer, signer, is_authority=True)
    leaf = _certificate(member, key.public_key(), issuer, signer, is_authority=False)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return b"".join([private, leaf, root]).decode()


@lru_cache(maxsize=64)
def job_tls(token: str, job: str, authority: Authority) -> JobTls:
    """Return what this process shows and trusts as a member of ``job``; made once."""
    return JobTls(issue_certificate(token, job, authority))


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> bytes:
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_UNTIL)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_key_usage(is_authority=is_authority), critical=True)
    )
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
