"""The verbs of `etude sandbox`: options, help and examples. The code of a verb is imported only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import verb
from etude.cli.options import STORE, StoreOption, group

sandboxes = group("Sandboxes (boxes) for untrusted code: what this host supports, and their images.")
images = group("The images that boxes start from: pull, import, make, list, remove.")
sandboxes.add_typer(images, name="images")


@sandboxes.command()
@verb()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Show which sandbox mode and limits this host supports.

    For each: what enforces it, and the setting that would improve it.

    \b
    Examples:
      etude sandbox doctor
      etude sandbox doctor --json
    """
    from etude.cli.host_checks import doctor_command

    return doctor_command(as_json)


@sandboxes.command()
@verb()
def attack(
    races: Annotated[int, typer.Option(min=1, help="Try each attack that needs luck this often.")] = 20,
    mode: Annotated[
        list[str] | None, typer.Option(help="A mode to attack; repeatable; by default all there are.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--class", help="A class of attacks; repeatable; by default all.")
    ] = None,
) -> int:
    """Attack the sandbox in every mode that this host has, and print one table of modes and classes.

    A cell says how often attacks of the class were tried and succeeded, or what the mode does not promise.

    The exit code is 1 if an attack succeeded or could not be tried. All boxes are temporary. Takes minutes.

    \b
    Examples:
      etude sandbox attack
      etude sandbox attack --mode landlock
      etude sandbox attack --class "path walks" --races 1000
    """
    from etude.cli.host_checks import attack_command

    return attack_command(races, mode or [], only or [])


@sandboxes.command()
@verb()
def fidelity() -> int:
    """Compare a box with a login shell: could an agent tell them apart?

    The exit code is 1 if there is a difference without a known reason.

    \b
    Example:
      etude sandbox fidelity
    """
    from etude.cli.host_checks import fidelity_command

    return fidelity_command()


@sandboxes.command("build")
@verb(when_interrupted="interrupted: finished steps are cached, run the same command again to continue")
def build(
    context: Annotated[Path, typer.Argument(help="The build context: the folder that COPY reads from.")],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The Dockerfile; by default CONTEXT/Dockerfile.")
    ] = None,
    target: Annotated[str, typer.Option(help="The stage to build; by default the last.")] = "",
    arg: Annotated[list[str] | None, typer.Option("--arg", help="Value of an ARG, as NAME=value; repeatable.")] = None,
    egress: Annotated[
        str, typer.Option(help="What RUN may reach: pip, npm, apt, hosts, FILE:TABLE, with commas; by default nothing.")
    ] = "",
    store: StoreOption = STORE,
) -> int:
    """Build an image from a Dockerfile, without Docker. Prints the image's id.

    Each RUN runs in a box of its own. Steps and their output go to standard error.

    Steps that were built before are cached; a changed step and all after it are built again. A RUN can reach only what
    --egress names: hosts, tables of hosts in a TOML file (FILE:TABLE), and with pip, npm or apt the servers that this
    host's own clients are configured to use.

    \b
    Examples:
      etude sandbox build ./environment
      etude sandbox build . --egress apt,pip
      etude sandbox build . --egress team.toml:python,mirror.example:8443
      etude sandbox build . --file docker/Dockerfile --target tests --arg VERSION=3.2
    """
    from etude.cli.images import build_command

    return build_command(context, file, target, arg or [], egress, store)


@images.command("list")
@verb()
def images_list(
    everything: Annotated[
        bool, typer.Option("--all", help="Also show build steps, snapshots and single files.")
    ] = False,
    store: StoreOption = STORE,
) -> int:
    """Show the images that were imported, pulled or built, most recently used first.

    \b
    Examples:
      etude sandbox images list
      etude sandbox images list --all
    """
    from etude.cli.images import list_command

    return list_command(store, everything=everything)


@images.command("import")
@verb()
def images_import(
    source: Annotated[
        Path, typer.Argument(help="A root file system, as a folder or tar (also .gz, .xz, .zst), or an image archive.")
    ],
    store: StoreOption = STORE,
) -> int:
    """Import an image from a root file system or an image archive. Prints its id.

    An image archive is what `docker save` or `podman save` writes.

    \b
    Examples:
      etude sandbox images import rootfs.tar.zst
      etude sandbox images import ./my-root
      docker save my/image -o image.tar && etude sandbox images import image.tar
    """
    from etude.cli.images import import_command

    return import_command(source, store)


@images.command("pull")
@verb()
def images_pull(
    reference: Annotated[str, typer.Argument(help="[registry/]name[:tag] or [registry/]name@sha256:...")],
    store: StoreOption = STORE,
) -> int:
    """Pull an image from an OCI registry. Prints its id.

    Of an image for several architectures, this machine's is pulled. Logins are those of `docker login` and
    `podman login`. What the store already has is not fetched again.

    \b
    Examples:
      etude sandbox images pull debian:stable-slim
      etude sandbox images pull localhost:5000/team/tasks:7
    """
    from etude.cli.images import pull_command

    return pull_command(reference, store)


@images.command("debootstrap")
@verb()
def images_debootstrap(
    suite: Annotated[str, typer.Argument(help="A Debian suite, for example bookworm.")],
    include: Annotated[str, typer.Option(help="Additional packages, separated by commas.")] = "",
    mirror: Annotated[str, typer.Option(help="Debian mirror; by default the one that this host's apt uses.")] = "",
    store: StoreOption = STORE,
) -> int:
    """Make a minimal Debian image with debootstrap. Prints its id.

    Needs root and the package debootstrap.

    \b
    Example:
      etude sandbox images debootstrap bookworm --include git,python3
    """
    from etude.cli.images import debootstrap_command

    return debootstrap_command(suite, mirror, [name for name in include.split(",") if name], store)


@images.command("remove")
@verb()
def images_remove(
    names: Annotated[list[str], typer.Argument(help="Image ids, as shown by `etude sandbox images list`.")],
    store: StoreOption = STORE,
) -> int:
    """Remove images from the store. Boxes that use them keep running; `collect` frees the disk.

    \b
    Example:
      etude sandbox images remove 5f2c0b7d9a1e4c3f8b6d2a7e9c0f1b3d
    """
    from etude.cli.images import remove_command

    return remove_command(names, store)


@images.command("collect")
@verb()
def images_collect(
    budget: Annotated[
        str, typer.Argument(help="Size the store may have, for example 20G; 0 keeps only what is in use.")
    ],
    grace: Annotated[float, typer.Option(help="Keep images used within this many minutes.")] = 10.0,
    store: StoreOption = STORE,
) -> int:
    """Free disk space, least recently used images first.

    Images are removed until the store fits the budget; layers that no image or box needs are always removed.

    What a living box uses, or a running build or pull is making, is never removed.

    \b
    Examples:
      etude sandbox images collect 20G
      etude sandbox images collect 0 --grace 0
    """
    from etude.cli.images import collect_command

    return collect_command(budget, grace, store)
