"""Packs what a container needs to run our init into one tar: the running Python interpreter, with the few modules and
libraries that init loads.

An image may have no Python and no C library, so the dynamic loader is included and started explicitly. All files of
the bundle lie below one folder. To find out which files init needs, a process on this host loads init and lists what it
has loaded.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import py_compile
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from etude.sandbox.contract import SandboxUnavailable
from etude.sandbox.oci.tars import new_tar

BUNDLE_FOLDER = "/.etude"
"""Where the bundle is mounted in a container."""
_LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
INIT = [
    f"{BUNDLE_FOLDER}/loader", "--library-path", f"{BUNDLE_FOLDER}/lib", f"{BUNDLE_FOLDER}/bin/python3",
    "-I", "-S", "-B", "-X", "utf8", "-c", "from etude.sandbox.inside.contained import main; main()",
]  # fmt: skip
"""Command that starts init in every container. A JSON message that describes the box is added as the last argument."""

# Stub packages replace `etude` and `etude.sandbox`, so that only `inside` is loaded, which is all that pid 1 needs.
_LIST_LOADED_FILES = """
import ctypes, json, sys, types
for name, folder in zip(("etude", "etude.sandbox"), sys.argv[1:]):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [folder]
import etude.sandbox.inside.contained
class Loaded(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
names = []
def see(loaded, size, data):
    names.append(loaded.contents.name.decode())
    return 0
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(kind(see), None)
modules = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
print(json.dumps({"objects": [name for name in names if name.startswith("/")], "modules": modules}))
"""


def write_init_bundle(folder: Path) -> Path:
    """Return the path of a tar in `folder` with all files that init needs in a container. The tar is made if there is
    none for this version of init's sources and of the interpreter."""
    inside = Path(__file__).parents[1] / "inside"
    digest = hashlib.blake2b(f"2 {sys.version} {sys.executable}".encode(), digest_size=16)
    for source in sorted(inside.glob("*.*")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    path = folder / f"init-{digest.hexdigest()}.tar"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".init-", delete=False) as file:
            _write(Path(file.name), inside)
        Path(file.name).rename(path)
    return path


def _write(path: Path, inside: Path) -> None:
    packages = [str(inside.parents[1]), str(inside.parent)]
    seen = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", _LIST_LOADED_FILES, *packages], capture_output=True, check=False
    )
    if seen.returncode:
        raise SandboxUnavailable(f"our init does not load here: {seen.stderr.decode(errors='replace').strip()}")
    found = json.loads(seen.stdout)
    modules: dict[str, str] = {name: file for name, file in found["modules"].items() if file}
    extensions = {file for file in modules.values() if not file.endswith(".py")}
    with path.open("wb") as file, new_tar(file) as tar:
        _add(tar, "bin/python3", Path(sys.executable).resolve().read_bytes(), executable=True)
        for name in found["objects"]:
            if Path(name).name.startswith("ld-"):
                _add(tar, "loader", Path(name).read_bytes(), executable=True)
            elif name not in extensions:
                _add(tar, f"lib/{Path(name).name}", Path(name).read_bytes())
        for extension in extensions:
            _add(tar, f"{_LIBRARY}/lib-dynload/{Path(extension).name}", Path(extension).read_bytes())
        for name, source in {**modules, "os": os.__file__}.items():
            if source.endswith(".py") and name != "__main__":
                target = name.replace(".", "/") + ("/__init__" if Path(source).name == "__init__.py" else "")
                _add(tar, f"{_LIBRARY}/{target}.pyc", _compiled(source))
        for package in ("etude", "etude/sandbox"):
            _add(tar, f"{_LIBRARY}/{package}/__init__.py", b"")
        for data in sorted(inside.glob("*.json")):
            _add(tar, f"{_LIBRARY}/etude/sandbox/inside/{data.name}", data.read_bytes())


def _compiled(source: str) -> bytes:
    """Return the bytecode of a source file, in a form that Python loads without looking for the source."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "module.pyc")
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(source, str(target), dfile=Path(source).name, doraise=True, invalidation_mode=mode)
        return target.read_bytes()


def _add(tar: tarfile.TarFile, name: str, data: bytes, *, executable: bool = False) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o755 if executable else 0o644
    tar.addfile(member, io.BytesIO(data))
