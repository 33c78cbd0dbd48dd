#!/bin/sh
# make gpu: check and measure the parts of Étude that use a GPU, in under ten minutes, with the torch already installed.
# Needs no .venv, no pytest plugin and no network. Without a GPU it checks the kernels under Triton's interpreter, if
# Triton is installed. If something is missing it prints one line and exits with code 2.
set -eu
cd "$(dirname "$0")/../.."
fail() { echo "gpu: $1" >&2; exit 2; }

python=${PYTHON:-}
for candidate in $python python3 .venv/bin/python; do
  command -v "$candidate" >/dev/null 2>&1 || continue
  if "$candidate" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1; then
    exec timeout 590 env PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" "$candidate" -P benchmarks/gpu/check.py "$@"
  fi
done
for candidate in $python python3 .venv/bin/python; do
  command -v "$candidate" >/dev/null 2>&1 || continue
  if "$candidate" -c 'import torch, triton' >/dev/null 2>&1; then
    echo "gpu: no GPU found: kernels are checked under Triton's interpreter, nothing is measured" >&2
    exec env PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" "$candidate" -W ignore::RuntimeWarning -P benchmarks/gpu/check.py --interpreted
  fi
done
fail "no GPU found, and no torch with Triton to interpret the kernels; set PYTHON=... to a Python that has torch"
