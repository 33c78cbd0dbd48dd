"""The JSON of images: indexes, manifests and configurations, as a registry or an archive gives them."""

from __future__ import annotations

import io
import json
from typing import IO

from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of
from tests.fuzz.targets.values import TEXTS, VALUES, mostly, record, written

from etude.sandbox.contract import ImageError, RequestRefused
from etude.sandbox.images.importing import _plan_docker, _plan_layout
from etude.sandbox.images.oci import (
    INDEXES,
    MACHINE,
    MANIFESTS,
    Plan,
    chain_names,
    choose,
    make_plan,
    read_config,
    read_json,
    read_manifest,
)
from etude.sandbox.images.reference import Reference

_DIGEST = "sha256:" + "a" * 64
_DIGESTS = mostly(st.sampled_from([_DIGEST, "sha512:" + "b" * 128, "sha256:" + "A" * 64, "md5:" + "a" * 32]))
_TYPES = st.sampled_from([*INDEXES, *MANIFESTS, "application/vnd.oci.empty.v1+json", "x/encrypted"])
_DESCRIPTORS = record(
    {
        "digest": _DIGESTS,
        "size": st.integers(-2, 9),
        "mediaType": _TYPES,
        "platform": record({"os": st.just("linux"), "architecture": st.just(MACHINE), "variant": TEXTS}),
        "annotations": st.dictionaries(
            st.sampled_from(["vnd.docker.reference.type", "org.opencontainers.image.ref.name"]), TEXTS
        ),
    }
)
_LISTS = mostly(st.lists(mostly(_DESCRIPTORS), max_size=3))
_SETTINGS = record(
    {
        "Env": st.lists(mostly(TEXTS), max_size=3),
        "Entrypoint": st.lists(mostly(TEXTS), max_size=2),
        "Cmd": st.lists(TEXTS, max_size=2),
        "Shell": st.lists(TEXTS, max_size=2),
        "WorkingDir": TEXTS,
        "User": TEXTS,
    }
)
_CONFIGS = record(
    {
        "os": st.just("linux"),
        "architecture": st.just(MACHINE),
        "rootfs": record({"diff_ids": st.lists(_DIGESTS, max_size=3)}),
        "config": _SETTINGS,
    }
)
_DOCUMENTS = st.one_of(
    record({"schemaVersion": st.just(2), "manifests": _LISTS}),
    record({"schemaVersion": st.just(2), "config": _DESCRIPTORS, "layers": _LISTS, "artifactType": TEXTS}),
    _CONFIGS,
    st.lists(record({"Config": TEXTS, "Layers": st.lists(mostly(TEXTS), max_size=3), "RepoTags": VALUES}), max_size=2),
)


def _nothing() -> IO[bytes]:
    return io.BytesIO()


def _run(data: bytes) -> str:
    """Read the same bytes as each of the documents."""
    said = []
    blob = None
    for read in (
        lambda: choose(read_json(data, "index"), "index"),
        lambda: read_manifest(data, "manifest"),
        lambda: read_config(data, "config"),
    ):
        try:
            read()
            said.append("read")
        except ImageError as error:
            said.append(kind_of(error))
    for count in (0, 1, 2):
        try:
            _check(make_plan(data, [(blob, _nothing)] * count, "config"))
            said.append("plan")
        except ImageError as error:
            said.append(kind_of(error))
    for plan in (_plan_layout, _plan_docker):
        try:
            _check(plan(lambda name: io.BytesIO(data), "archive"))
            said.append("plan")
        except ImageError as error:
            said.append(kind_of(error))
    return said[0] if said[1] == said[2] else " / ".join(one[:30] for one in said[1:4])


def _check(plan: Plan) -> None:
    chain_names([layer.diff_id for layer in plan.layers])
    config = plan.config
    assert all(isinstance(text, str) for text in (config.workdir, config.user, *config.entrypoint, *config.command))
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in config.env)


def _examples() -> list[bytes]:
    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": _DIGEST, "size": 3}
    platform = {"os": "linux", "architecture": MACHINE}
    config = {
        "config": {"Env": ["A=1"], "Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": [_DIGEST]},
        **platform,
    }
    documents = [
        {
            "schemaVersion": 2,
            "manifests": [{"mediaType": MANIFESTS[0], "digest": _DIGEST, "size": 2, "platform": platform}],
        },
        {"schemaVersion": 2, "mediaType": MANIFESTS[0], "config": layer, "layers": [layer, layer]},
        config,
        [{"Config": "x.json", "RepoTags": ["a:b"], "Layers": ["l.tar"]}],
    ]
    return [json.dumps(document).encode() for document in documents]


def _run_reference(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape")
    try:
        found = Reference.parse(text)
    except RequestRefused:
        return "refused"
    assert Reference.parse(str(found)) == found
    assert not set(found.repository) & set(" /\\?#%@") - {"/"}
    assert found.url.endswith(f"/v2/{found.repository}")
    return f"{bool(found.tag)} {bool(found.digest)}"


_REFERENCES = st.from_regex(
    r"([a-z0-9.:\[\]-]{0,12}/)?[a-z0-9_./-]{0,16}(:[A-Za-z0-9_.-]{0,8})?(@sha256:[0-9a-f]{64})?", fullmatch=True
)

TARGETS = (
    Target("image", _run, _DOCUMENTS.map(written), ("etude.sandbox.images",), _examples),
    Target(
        "reference",
        _run_reference,
        _REFERENCES.map(lambda text: text.encode()),
        ("etude.sandbox.images.reference",),
        lambda: [b"debian", b"a.b:5000/c/d:e", b"[::1]:80/x@sha256:" + b"a" * 64],
    ),
)
