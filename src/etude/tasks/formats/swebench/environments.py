"""Chooses the environment of an instance: an image by name, a Dockerfile, or files alone."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from etude.tasks.formats.swebench.clones import Clones
from etude.tasks.formats.swebench.instance import Instance, UnsupportedRow, Variant


@dataclass(frozen=True, slots=True)
class ImportSources:
    """What the user provides for an import: clones, an image name, an interpreter."""

    clones: Clones | None = None
    image: str = ""
    """Image name as a template that contains {id}, {repo} or {tag}; empty for none."""
    python: str = ""
    """Path of the Python interpreter in the images; empty for the default."""


@dataclass(frozen=True, slots=True)
class Environment:
    config: dict[str, Any]
    """Settings to add to the task's task.toml."""
    python: str
    files: Mapping[str, bytes]
    """Files to write below environment/ in the task's directory."""
    bare: bool = False
    """Whether the environment has no image of its own: its boxes show the workspace's files over the host's system
    folders."""


def environment_of(instance: Instance, sources: ImportSources, hidden: Collection[str]) -> Environment:
    """Choose an instance's environment: the image that the user names, else a clone's files, else the task's own
    Dockerfile, else the row's image.

    `hidden` are files that the grader restores; an image that is built here does not contain them.
    """
    python = sources.python or instance.python
    if sources.clones and not sources.image:
        config = {"source": "swe-bench", "metadata": {"etude": {"environment": {"base": "host"}}}}
        return Environment(config, sources.python or "python3", {}, bare=True)
    inside: dict[str, Any] = {"workdir": instance.workdir}
    config = {"source": "swe-bench", "environment": inside}
    context = instance.row.context()
    if "Dockerfile" in context and not sources.image:
        return Environment(config, python, context)
    named = sources.image or instance.image
    if not named:
        raise UnsupportedRow(
            f"{instance.place}: image: the row names no image: give a name for all rows "
            "(--image registry.example/name:{id}) or a folder of clones (--clones)"
        )
    image = image_name(named, instance)
    if instance.variant is Variant.SMITH:
        return Environment(config, python, _dockerfile_with_bug(instance, image, hidden))
    inside["docker_image"] = image
    return Environment(config, python, {})


def image_name(template: str, instance: Instance) -> str:
    """Fill in the template's placeholders. Image names are lower case and cannot contain two underscores in a row."""
    values = {"id": instance.id, "repo": instance.repo.replace("/", "__")}
    name = template
    for key, value in values.items():
        name = name.replace(f"{{{key}}}", value.lower().replace("__", "_1776_"))
    if "{tag}" in name and not instance.tag:
        raise UnsupportedRow(
            f"{instance.place}: dockerhub_tag: the image name contains {{tag}}, but the row has no tag"
        )
    return name.replace("{tag}", instance.tag)


def _dockerfile_with_bug(instance: Instance, image: str, hidden: Collection[str]) -> dict[str, bytes]:
    """Return two files that build an image with the bug: the bug's patch, and a Dockerfile. The Dockerfile starts from
    an image with the correct code, applies the patch and removes the `hidden` files."""
    lines = [f"FROM {image}", f"WORKDIR {instance.workdir}", "COPY bug.patch /tmp/bug.patch"]
    lines.append("RUN git apply --whitespace=nowarn /tmp/bug.patch && rm /tmp/bug.patch")
    if hidden:
        lines.append(f"RUN rm -f -- {shlex.join(sorted(hidden))}")
    return {"Dockerfile": "\n".join([*lines, ""]).encode(), "bug.patch": instance.patch.encode()}
