#!/bin/sh
# What the tests and benchmarks of the sandbox compare with or talk to; nothing of it is needed to use the project.
set -eu

tools="podman:podman runc:runc docker-registry:docker-registry debootstrap:debootstrap newuidmap:uidmap bwrap:bubblewrap busybox:busybox-static strace:strace"
missing=""
for pair in $tools; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "tests that need them are skipped; for all of them run: sudo apt-get install$missing" >&2
  exit 0
fi
echo "installing for the tests:$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # One word per package.
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null
