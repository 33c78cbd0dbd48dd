"""The authority of a backend: believed by real programs, kept in memory alone."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from tests.contract.sandbox.support import in_loop

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


@in_loop
async def test_handshakes_remember_the_name_they_were_for() -> None:
    authority = Authority()
    assert authority.context_for("index.example") is authority.context_for("index.example")
    seen: list[str | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("ssl_object").server_name)
        await reader.read()
        writer.close()

    trusting = ssl.create_default_context(cadata=authority.pem.decode())
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=authority.context_for("index.example")) as server:
        port = server.sockets[0].getsockname()[1]

        async def knock(name: str | None, context: ssl.SSLContext) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
            writer.close()
            await writer.wait_closed()

        await knock("index.example", trusting)
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            await knock("evil.example", trusting)
        with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
            await knock("index.example", ssl.create_default_context())
        careless = ssl.create_default_context()
        careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
        await knock("evil.example", careless)
        await knock("", careless)
    assert [seen[0], *seen[-2:]] == ["index.example", "evil.example", None]


def test_two_backends_share_nothing() -> None:
    assert Authority().pem != Authority().pem
