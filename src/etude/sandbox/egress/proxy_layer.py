"""Makes the files that an image needs behind the egress proxy: lists of certificate authorities that include the
proxy's own, and the name server's address.

The files form a layer between the image and what the box writes. So a snapshot of the box does not contain them, and
programs in the box can change or replace them as on any machine.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath

from etude.sandbox.contract import ImageError
from etude.sandbox.images.stack import Stack
from etude.sandbox.inside.network import IPV4

BUNDLES = (
    "etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "etc/ssl/cert.pem",  # Alpine
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora and related distributions
    "etc/pki/tls/certs/ca-bundle.crt",
    "var/lib/ca-certificates/ca-bundle.pem",  # openSUSE
)
"""Files in which Linux distributions keep their list of trusted authorities."""
SOURCES = ("usr/local/share/ca-certificates", "etc/pki/ca-trust/source/anchors", "etc/pki/trust/anchors")
"""Folders of certificates from which a distribution rebuilds its list of trusted authorities. The proxy's certificate
is added there too: a Dockerfile step may install ca-certificates, which rebuilds the list, and then fetch something."""
FILE = "local-root.crt"
"""Name of the file, in a box, with the certificate of the egress proxy's certificate authority."""
_LARGEST_BUNDLE = 8 << 20
_MOST_LINKS = 40

# For programs that bring their own list of authorities: variables that point them to the system's list.
ENVIRONMENT = {
    "SSL_CERT_FILE": f"/{BUNDLES[0]}",
    "REQUESTS_CA_BUNDLE": f"/{BUNDLES[0]}",
    "NODE_EXTRA_CA_CERTS": f"/etc/ssl/certs/{FILE}",
}


def files_behind_proxy(stack: Stack, authority: bytes, lookup_name: str) -> dict[PurePosixPath, bytes]:
    """Return the files that an image needs behind the proxy, by path. `stack` holds all layers with the base tree;
    OpenSSL finds the certificate `authority` as `lookup_name`."""
    files = {PurePosixPath("etc/resolv.conf"): f"nameserver {IPV4.gate}\n".encode()}
    for number, name in enumerate(BUNDLES):
        place = resolve(stack, PurePosixPath(name))
        known = _read(stack, place)
        if known or number == 0:
            files[place] = known + (b"" if not known or known.endswith(b"\n") else b"\n") + authority
    folder = resolve(stack, PurePosixPath(BUNDLES[0])).parent
    for place in (folder / lookup_name, folder / FILE):
        files[place] = authority
    for number, name in enumerate(SOURCES):
        folder = resolve(stack, PurePosixPath(name))
        if number == 0 or any(place.is_dir() for place in stack.find(folder).paths):
            files[folder / FILE] = authority
    files |= _name_service(stack)
    return files


def resolve(stack: Stack, path: PurePosixPath) -> PurePosixPath:
    """Follow the links of a path in the image. A path that does not exist leads to itself."""
    done, left, links = PurePosixPath(), list(path.parts), 0
    while left:
        part = left.pop(0)
        if part == "..":
            done = done.parent
            continue
        places = stack.find(done / part).paths
        if not places or not places[0].is_symlink():
            done = done / part
            continue
        links += 1
        if links > _MOST_LINKS:
            raise ImageError(f"/{path} of the image leads in a circle: {os.strerror(errno.ELOOP)}")
        goal = PurePosixPath(places[0].readlink())
        if goal.is_absolute():
            done, goal = PurePosixPath(), goal.relative_to("/")
        left = [*goal.parts, *left]
    return done


def _read(stack: Stack, path: PurePosixPath) -> bytes:
    """Return the content of a file of the image; no bytes if there is no such file."""
    places = stack.find(path).paths
    if not places or not places[0].is_file():
        return b""
    if places[0].stat().st_size > _LARGEST_BUNDLE:
        raise ImageError(f"/{path} of the image has more than {_LARGEST_BUNDLE} bytes; expected a list of authorities")
    return places[0].read_bytes()


def _name_service(stack: Stack) -> dict[PurePosixPath, bytes]:
    """Return {path: content} of an nsswitch.conf that looks host names up by DNS; {} if nothing is to change."""
    path = PurePosixPath("etc/nsswitch.conf")
    lines = _read(stack, path).decode("utf-8", "surrogateescape").splitlines()
    changed = [f"{line} dns" if line.startswith("hosts:") and "dns" not in line.split() else line for line in lines]
    return (
        {} if changed == lines else {path: "".join(f"{line}\n" for line in changed).encode("utf-8", "surrogateescape")}
    )


def write_layer(target: Path, files: dict[PurePosixPath, bytes], owner: int | None) -> None:
    """Write the files below `target`, owned by the user and group id `owner`, or by the caller if None."""
    for path, content in files.items():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    for place in [target, *target.rglob("*")]:
        place.chmod(0o755 if place.is_dir() else 0o644)
        if owner is not None:
            os.chown(place, owner, owner)
