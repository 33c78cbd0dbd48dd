#!/bin/sh
# Try the README's commands as a newcomer would: in a fresh clone of the last commit on a bare Debian system, as root
# and as an ordinary user. Usage: fresh.sh [root|user|both] [test|quickstart|both]
#
# The Debian root tree has the packages that the README asks for and no others. debootstrap makes it once, it is kept in
# the cache, and each try works on a copy. This machine's apt and pip settings are copied into it, with the local
# folders that they name, so that packages come from the same place as on this machine.
set -eu
cd "$(dirname "$0")/.."

fail() { echo "fresh: $1" >&2; exit 2; }
case "${1:-both}" in root | user) who=$1 ;; both) who="root user" ;; *) fail "expected root, user or both, found $1" ;; esac
case "${2:-both}" in test | quickstart) what=$2 ;; both) what="test quickstart" ;; *) fail "expected test, quickstart or both, found $2" ;; esac
[ "$(id -u)" = 0 ] || fail "must run as root, to make a Debian tree and enter it"
PATH=$PATH:/usr/sbin:/sbin
command -v debootstrap >/dev/null || fail "debootstrap is missing; run: apt-get install debootstrap"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/etude/fresh
suite=${SUITE:-bookworm} packages=python3,python3-venv,make,git,ca-certificates
pristine=$cache/$suite.tar
mkdir -p "$cache/logs"

if [ ! -e "$pristine" ]; then
  mirror=$(apt-get indextargets --format '$(SITE)' "Codename: $suite" 2>/dev/null | head -n 1)
  echo "fresh: making a bare $suite (minutes, once)"
  made=$(mktemp -d "$cache/making.XXXXXX")
  # shellcheck disable=SC2086  # Unquoted, so that no mirror gives no argument.
  debootstrap --variant=minbase --include=$packages "$suite" "$made" ${mirror:-} >"$cache/logs/debootstrap.log" 2>&1 ||
    fail "debootstrap failed; see $cache/logs/debootstrap.log"
  tar -C "$made" -cf "$pristine.part" . && mv "$pristine.part" "$pristine"
  rm -rf "$made"
fi

# Settings that determine where packages come from: those of apt and pip, proxies, certificates.
settings="/etc/apt /etc/pip.conf /etc/xdg/pip /etc/ssl/certs /etc/resolv.conf /etc/hosts"
named() { env | grep -E '^(PIP_|[a-zA-Z]*_proxy=|[A-Z]*_PROXY=|SSL_CERT|REQUESTS_CA|CURL_CA|TORCH_INDEX=)' || true; }
# Local folders that pip's settings point to. An index on disk (.../simple) links to .../files, so take their parent.
places() { { named; cat /etc/pip.conf /etc/xdg/pip/* "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" 2>/dev/null; } |
  grep -oE '(file://)?/[A-Za-z0-9._/-]+' | sed 's|^file://||' | sort -u | while read -r place; do
    if [ -d "${place%/*}/files" ]; then echo "${place%/*}"; elif [ -d "$place" ]; then echo "$place"; fi
  done; }

try() { # who what
  tree=$(mktemp -d "$cache/try.XXXXXX") log=$cache/logs/$1-$2.log
  tar -C "$tree" -xf "$pristine"
  chmod 755 "$tree"
  for path in $settings "$HOME/.config/pip"; do
    [ -e "$path" ] || continue
    mkdir -p "$tree$(dirname "$path")" && rm -rf "$tree$path" && cp -aL "$path" "$tree$path"
  done
  home=/root
  [ "$1" = root ] || { home=/home/person && chroot "$tree" useradd --create-home person; }
  git clone --quiet --no-local . "$tree$home/etude"
  git -C "$tree$home/etude" remote remove origin
  chroot "$tree" chown -R "$([ "$1" = root ] && echo root || echo person)" "$home/etude"
  places | while read -r place; do mkdir -p "$tree$place"; done
  begun=$(date +%s) code=0
  # pivot_root instead of chroot: in a chroot no user namespaces can be created.
  # In the background, since while a shell waits for a command it serves no trap. The command is pid 1 of its namespace,
  # which no signal but this ends, with everything in it.
  trap 'kill -KILL $(cat "/proc/$unshared/task/$unshared/children"); wait; rm -rf "$tree"; exit 130' INT TERM
  unshare --mount --pid --fork sh -eu -s "$tree" "$home" "$1" "$2" "$(places)" "$(named)" >"$log" 2>&1 <<'INSIDE' &
tree=$1 home=$2 who=$3 what=$4 places=$5 named=$6
mount --make-rprivate / && mount --bind "$tree" "$tree"
for place in $places; do mount --bind "$place" "$tree$place"; done
mount -t proc proc "$tree/proc" && mount --rbind /sys "$tree/sys" && mount --rbind /dev "$tree/dev"
mount -t tmpfs -o mode=1777 tmpfs "$tree/tmp" && mount -t tmpfs -o mode=1777 tmpfs "$tree/dev/shm"
mkdir -p "$tree/before" && cd "$tree" && pivot_root . before && cd / && umount -l /before
set --
while read -r line; do [ -z "$line" ] || set -- "$@" "$line"; done <<NAMED
$named
NAMED
user="" && [ "$who" = root ] || user="setpriv --reuid=person --regid=person --init-groups"
cd "$home/etude"
exec env -i "$@" HOME="$home" TERM=xterm-256color LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin $user make "$what"
INSIDE
  unshared=$!
  wait "$unshared" || code=$?
  trap - INT TERM
  seconds=$(($(date +%s) - begun))
  [ "$code" = 0 ] && echo "fresh: make $2 as $1: green in $seconds s" || echo "fresh: make $2 as $1: code $code after $seconds s; see $log"
  grep -E '^(skipped [0-9]+:|tests that need|tests of|FAILED|ERROR)|^[0-9]+ (passed|failed)' "$log" | sed 's/^/  /' || true
  rm -rf "$tree"
  return "$code"
}

red=0
for one in $who; do for command in $what; do try "$one" "$command" || red=1; done; done
exit $red
