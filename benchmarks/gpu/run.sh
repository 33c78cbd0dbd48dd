#!/bin/sh
# make gpu: checks and measures on the GPU what of Étude has use for one, in under ten minutes, with the torch that is there.
# Needs no .venv, no pytest plugin and no network. Without a GPU it checks the kernels under Triton's interpreter, where
# there is a Triton. Exit 2 and one line where something is missing.
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
    echo "gpu: no GPU here: kernels are checked under Triton's interpreter, nothing is measured" >&2
    exec env PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" "$candidate" -W ignore::RuntimeWarning -P benchmarks/gpu/check.py --interpreted
  fi
done
fail "no GPU here: no Python on the path (nor PYTHON=...) has a torch that finds a CUDA device, nor a Triton to interpret"
