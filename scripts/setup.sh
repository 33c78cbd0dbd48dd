#!/bin/sh
# Create .venv and install the project with its pinned dependencies. If something is missing, say in one line how to get
# it.
set -eu

python=${PYTHON:-python3}
fail() { echo "setup: $1" >&2; exit 2; }

command -v "$python" >/dev/null 2>&1 || fail "$python is missing; run: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "Python 3.11 or newer is needed, $("$python" --version 2>&1) found; set PYTHON=/path/to/python3.11"
if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "setup: installing python3-venv"
    { apt-get update -qq && apt-get install -y -qq python3-venv; } >/dev/null || fail "apt-get install python3-venv failed"
  else
    fail "this Python has no venv module; run: sudo apt-get install python3-venv"
  fi
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "setup: installing into .venv (about two minutes the first time)"
# Install torch first and alone: the default index may have CUDA builds (gigabytes), TORCH_INDEX can name a CPU index.
if ! .venv/bin/python -c 'import torch' >/dev/null 2>&1; then
  version=$(sed -n 's/^torch==//p' constraints.txt)
  .venv/bin/pip install -q "torch==$version" -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} || fail "could not install torch"
fi
.venv/bin/pip install -q -e ".[all,dev]" -c constraints.txt || fail "pip failed; see above"
touch .venv/.installed
