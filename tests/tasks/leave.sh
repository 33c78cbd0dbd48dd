# What a careless build does: run in the image of tests/tasks/leaky.py, as its agent.
set -eu
export HOME=/home/agent GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.example GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.example
broken=/tmp/context/broken fixed=/tmp/context/fixed
commit() { git add -A && git commit -q -m "$1"; }
fix() { cp $fixed rides/fares.py; }
unfix() { cp $broken rides/fares.py; }

# Objects that another repository lends.
mkdir -p /srv/mirror && cd /srv/mirror && git init -q . && mkdir rides && fix && commit mirrored && rm -r rides
cd /srv/rides && git init -q -b trunk .
echo /srv/mirror/.git/objects > .git/objects/info/alternates
mkdir -p rides docs && cp /tmp/context/gitattributes .gitattributes && echo '*.log' > .gitignore
touch rides/__init__.py && unfix && printf 'one\r\ntwo\r\n' > docs/notes.bat && printf '#!/bin/sh\necho hi\n' > go && chmod +x go
ln -s rides/fares.py link.py
commit base
git tag before
# A later commit, its tag, a branch, a note, the reflog that remembers it, a stash, and a pack of what nothing reaches.
fix && commit "the fix" && git tag v2 && git branch release && git notes add -m 'return zone * 120 + minutes // 15 * 25'
git reset -q --hard before
fix && git stash -q
fix && commit unreachable && git repack -q -a -d && git reset -q --hard before
git remote add origin https://git.example/rides
printf '#!/bin/sh\ntouch /srv/rides/hooked\n' > .git/hooks/post-index-change && chmod +x .git/hooks/post-index-change
git config core.fsmonitor 'touch /srv/rides/monitored; false'
# Caches, a build, what an editor and a patch left, somebody's history, an untracked file that is nobody's secret.
python3 -c "import sys, compileall; compileall.compile_dir('rides', quiet=1)"
cp $fixed /tmp/fares.py && python3 -c "import py_compile; py_compile.compile('/tmp/fares.py', cfile='rides/__pycache__/fares.cpython-311.pyc')"
mkdir -p build/lib/rides .mypy_cache notes && fix && cp rides/fares.py build/lib/rides/ && cp rides/fares.py rides/fares.py.orig
unfix
echo '{"a": "return zone * 120 + minutes // 15 * 25"}' > .mypy_cache/fares.json
echo seen > notes/seen
cp $fixed /home/agent/.bash_history
# Installed copies and archives of the fixed release.
packages=/srv/lib/site-packages
mkdir -p $packages/rides $packages/rides-2.0.dist-info $packages/other /home/agent/.cache/pip /srv/wheels
cp $fixed $packages/rides/fares.py && touch $packages/rides/__init__.py && echo rides > $packages/rides-2.0.dist-info/top_level.txt
echo 'import os' > $packages/other/__init__.py
cd $packages && python3 -m zipfile -c /srv/wheels/rides-2.0-py3-none-any.whl rides && tar czf /srv/wheels/rides-2.0.tar.gz rides
cp /srv/wheels/rides-2.0.tar.gz /home/agent/.cache/pip/entry
# What even its owner may not read.
mkdir /srv/locked /srv/closed && echo a > /srv/closed/file && chmod 0 /srv/locked /srv/closed/file
rm -rf /tmp/context /tmp/fares.py
