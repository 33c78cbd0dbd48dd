"""The authority of a backend: believed by real programs, kept in memory alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography import x509

from etude.sandbox.egress.authority import Authority


def test_openssl_believes_it_and_finds_it_by_its_lookup_name(tmp_path: Path) -> None:
    authority = Authority()
    root, leaf = tmp_path / "root.pem", tmp_path / "leaf.pem"
    root.write_bytes(authority.pem)
    leaf.write_bytes(authority._certify("index.example").partition(b"-----END PRIVATE KEY-----\n")[2])
    said = subprocess.run(
        ["openssl", "x509", "-hash", "-noout", "-in", root], capture_output=True, text=True, check=True
    )
    assert authority.lookup_name == f"{said.stdout.strip()}.0"
    verify = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname"]
    good = subprocess.run(
        [*verify, "index.example", "-CAfile", root, leaf], capture_output=True, text=True, check=False
    )
    assert good.returncode == 0, good.stderr
    other = subprocess.run(
        [*verify, "evil.example", "-CAfile", root, leaf], capture_output=True, text=True, check=False
    )
    assert other.returncode != 0
    (tmp_path / authority.lookup_name).write_bytes(authority.pem)
    by_folder = [*verify, "index.example", "-CApath", tmp_path, "-no-CAfile", leaf]
    assert subprocess.run(by_folder, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", ["index.example", "a" * 63 + "." + "b" * 60 + ".org", "x_y.example.org"])
def test_a_leaf_is_good_for_its_name_alone(name: str) -> None:
    authority = Authority()
    _, _, pem = authority._certify(name).partition(b"-----END PRIVATE KEY-----\n")
    certificate = x509.load_pem_x509_certificate(pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [name]
    certificate.verify_directly_issued_by(authority._certificate)
