"""etude sandbox: what this machine allows boxes, and what they are made from. Rooms are imported when a verb is
called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import finish

sandboxes = typer.Typer(
    help="Boxes for untrusted code: what this machine allows, and their images.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
images = typer.Typer(
    help="What boxes are made from: pull, import, make, list, remove.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
sandboxes.add_typer(images, name="images")

StoreOption = Annotated[Path, typer.Option("--store", help="The folder of images and boxes.")]
STORE = Path("runs/boxes")


@sandboxes.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Print the mode and the limits that boxes have here.

    For each: who holds it, and the knob for a better one.

    \b
    Examples:
      etude sandbox doctor
      etude sandbox doctor --json
    """

    def verb() -> int:
        from etude.cli.host_checks import doctor_command

        return doctor_command(as_json)

    finish(verb)


@sandboxes.command()
def fidelity() -> None:
    """Compare a box with a plain login: what could tell an agent?

    The exit code is 1 if there is a difference that nobody has explained.

    \b
    Example:
      etude sandbox fidelity
    """

    def verb() -> int:
        from etude.cli.host_checks import fidelity_command

        return fidelity_command()

    finish(verb)


@sandboxes.command("build")
def build(
    context: Annotated[Path, typer.Argument(help="The folder that COPY takes files from.")],
    file: Annotated[Path | None, typer.Option("--file", "-f", help="The Dockerfile; CONTEXT/Dockerfile else.")] = None,
    target: Annotated[str, typer.Option(help="The stage to build; the last if not given.")] = "",
    arg: Annotated[list[str] | None, typer.Option("--arg", help="A value for an ARG, as NAME=value.")] = None,
    egress: Annotated[
        str, typer.Option(help="What RUN may reach: named policies or hosts, with commas; nothing if not given.")
    ] = "",
    store: StoreOption = STORE,
) -> None:
    """Build a Dockerfile without Docker. Prints the image's id.

    Each RUN is a command in a box of its own; steps and their output go to standard error.

    Steps that were built before are found again; a change makes that step anew and what follows. A RUN reaches only
    what --egress names: hosts, tables of hosts in a file of yours, and pip, npm or apt for what this host's own
    clients are set to use.

    \b
    Examples:
      etude sandbox build ./environment
      etude sandbox build . --egress apt,pip
      etude sandbox build . --egress team.toml:python,mirror.example:8443
      etude sandbox build . --file docker/Dockerfile --target tests --arg VERSION=3.2
    """

    def verb() -> int:
        from etude.cli.build import build_command

        return build_command(context, file, target, arg or [], egress, store)

    finish(verb, when_interrupted="interrupted: steps that were done are found again")


@images.command("list")
def images_list(
    everything: Annotated[
        bool, typer.Option("--all", help="Steps of builds, snapshots and single files, too.")
    ] = False,
    store: StoreOption = STORE,
) -> None:
    """Show the images that were imported, pulled or built, the last used first.

    \b
    Examples:
      etude sandbox images list
      etude sandbox images list --all
    """

    def verb() -> int:
        from etude.cli.images import list_command

        return list_command(store, everything=everything)

    finish(verb)


@images.command("import")
def images_import(
    source: Annotated[Path, typer.Argument(help="A folder, a tar (also .gz, .xz, .zst), or an image's archive.")],
    store: StoreOption = STORE,
) -> None:
    """Make an image of files, or of a saved one. Prints its id.

    Takes a root file system as a folder or tar, or what `docker save` or `podman save` has written.

    \b
    Examples:
      etude sandbox images import rootfs.tar.zst
      etude sandbox images import ./my-root
      docker save my/image -o image.tar && etude sandbox images import image.tar
    """

    def verb() -> int:
        from etude.cli.images import import_command

        return import_command(source, store)

    finish(verb)


@images.command("pull")
def images_pull(
    reference: Annotated[str, typer.Argument(help="[registry/]name[:tag] or [registry/]name@sha256:...")],
    store: StoreOption = STORE,
) -> None:
    """Fetch an image from an OCI registry. Prints its id.

    It is the one for this machine's kind of processor. Logins are those of `docker login` and `podman login`. What is
    there already is not fetched again.

    \b
    Examples:
      etude sandbox images pull debian:stable-slim
      etude sandbox images pull localhost:5000/team/tasks:7
    """

    def verb() -> int:
        from etude.cli.images import pull_command

        return pull_command(reference, store)

    finish(verb)


@images.command("debootstrap")
def images_debootstrap(
    suite: Annotated[str, typer.Argument(help="A Debian suite, for example bookworm.")],
    include: Annotated[str, typer.Option(help="More packages, with commas between them.")] = "",
    mirror: Annotated[str, typer.Option(help="Where to fetch from; what this host's apt uses if not given.")] = "",
    store: StoreOption = STORE,
) -> None:
    """Make a minimal Debian image from its packages. Prints its id.

    Needs root and the package debootstrap.

    \b
    Example:
      etude sandbox images debootstrap bookworm --include git,python3
    """

    def verb() -> int:
        from etude.cli.images import debootstrap_command

        return debootstrap_command(suite, mirror, [name for name in include.split(",") if name], store)

    finish(verb)


@images.command("remove")
def images_remove(
    names: Annotated[list[str], typer.Argument(help="Ids, as `etude sandbox images list` shows them.")],
    store: StoreOption = STORE,
) -> None:
    """Forget images. Boxes that stand on them go on; `collect` frees the disk.

    \b
    Example:
      etude sandbox images remove 5f2c0b7d9a1e4c3f8b6d2a7e9c0f1b3d
    """

    def verb() -> int:
        from etude.cli.images import remove_command

        return remove_command(names, store)

    finish(verb)


@images.command("collect")
def images_collect(
    budget: Annotated[str, typer.Argument(help="What the store may hold, for example 20G; 0 keeps only what is used.")],
    grace: Annotated[float, typer.Option(help="Minutes since its last use for which an image is safe.")] = 10.0,
    store: StoreOption = STORE,
) -> None:
    """Free disk: what was not used for longest goes first.

    Images go until the store is within its budget, and layers that nothing needs.

    Never what a living box stands on, or a build or pull is making.

    \b
    Examples:
      etude sandbox images collect 20G
      etude sandbox images collect 0 --grace 0
    """

    def verb() -> int:
        from etude.cli.images import collect_command

        return collect_command(budget, grace, store)

    finish(verb)
