"""What the layer of a box behind the proxy holds, for the ways in which distributions keep their trust."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from etude.sandbox import ImageError
from etude.sandbox.egress.proxy_layer import files_behind_proxy, resolve, write_layer
from etude.sandbox.images.stack import Stack, make_whiteout

CA = b"-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n"
BUNDLE = "etc/ssl/certs/ca-certificates.crt"


def layer(folder: Path, files: dict[str, str]) -> Path:
    """Values that begin with -> are links."""
    folder.mkdir()
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("->"):
            place.symlink_to(content[2:])
        else:
            place.write_text(content)
    return folder


def built(*layers: Path) -> dict[str, bytes]:
    return {str(path): data for path, data in files_behind_proxy(Stack(layers), CA, "abc.0").items()}


def test_an_image_that_trusts_nobody(tmp_path: Path) -> None:
    files = built(layer(tmp_path / "a", {}))
    assert files == {
        "etc/resolv.conf": b"nameserver 192.168.1.1\n",
        BUNDLE: CA,
        "etc/ssl/certs/abc.0": CA,
        "etc/ssl/certs/local-root.crt": CA,
        "usr/local/share/ca-certificates/local-root.crt": CA,
    }


def test_debian_keeps_its_own_and_can_make_its_bundle_again(tmp_path: Path) -> None:
    lower = layer(tmp_path / "a", {BUNDLE: "old"})
    upper = layer(tmp_path / "b", {BUNDLE: "known"})
    files = built(upper, lower)
    assert files[BUNDLE] == b"known\n" + CA
    assert files["usr/local/share/ca-certificates/local-root.crt"] == CA
    assert "etc/nsswitch.conf" not in files


def test_fedora_has_links_where_others_have_folders(tmp_path: Path) -> None:
    bundle = "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
    files = built(
        layer(
            tmp_path / "a",
            {
                bundle: "known\n",
                "etc/ssl/certs": "->../pki/tls/certs",
                "etc/pki/tls/certs/ca-bundle.crt": f"->/{bundle}",
                "etc/pki/ca-trust/source/anchors/README": "",
            },
        )
    )
    assert files[bundle] == b"known\n" + CA
    assert files["etc/pki/tls/certs/abc.0"] == CA
    assert files["etc/pki/ca-trust/source/anchors/local-root.crt"] == CA
    assert not any(name.startswith("etc/ssl") for name in files)


def test_alpine_links_its_second_bundle_to_the_first(tmp_path: Path) -> None:
    files = built(layer(tmp_path / "a", {BUNDLE: "known\n", "etc/ssl/cert.pem": "->certs/ca-certificates.crt"}))
    assert files[BUNDLE] == b"known\n" + CA
    assert "etc/ssl/cert.pem" not in files


def test_hosts_are_asked_of_the_name_server(tmp_path: Path) -> None:
    files = built(layer(tmp_path / "a", {"etc/nsswitch.conf": "passwd: files\nhosts: files\n"}))
    assert files["etc/nsswitch.conf"] == b"passwd: files\nhosts: files dns\n"


def test_what_an_upper_layer_removed_stays_removed(tmp_path: Path) -> None:
    lower = layer(tmp_path / "a", {BUNDLE: "known"})
    upper = layer(tmp_path / "b", {"etc/ssl/certs/other": ""})
    make_whiteout(upper / BUNDLE)
    assert built(upper, lower)[BUNDLE] == CA


def test_links_lead_nowhere_but_into_the_image(tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_text("host")
    image = layer(
        tmp_path / "a", {BUNDLE: f"->{'../' * 20}{outside}", "x": "->/../../etc", "loop": "->loop2", "loop2": "->loop"}
    )
    assert b"host" not in built(image)[str(outside).removeprefix("/")]
    assert resolve(Stack((image,)), PurePosixPath("x/y")) == PurePosixPath("etc/y")
    with pytest.raises(ImageError, match="circle"):
        resolve(Stack((image,)), PurePosixPath("loop"))


def test_the_layer_on_disk(tmp_path: Path) -> None:
    write_layer(tmp_path / "out", {PurePosixPath("etc/a"): b"1", PurePosixPath("etc/b/c"): b"2"}, None)
    assert (tmp_path / "out/etc/b/c").read_bytes() == b"2"
    assert oct((tmp_path / "out/etc/b").stat().st_mode)[-3:] == "755"
    assert oct((tmp_path / "out/etc/a").stat().st_mode)[-3:] == "644"
