# tracked STORE: what the index of another repository's store lists; nothing else of it is read.
# squash BRANCH ALL: a new repository in this folder, with one commit of the files named on stdin (or of all that git
# does not ignore); says what `git status` finds to be unclean.
set -eu
export LC_ALL=C HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0
export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_CONFIG_KEY_1=core.hooksPath GIT_CONFIG_VALUE_1=/dev/null
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_TEMPLATE_DIR
umask 022

tracked() {
  fresh=/tmp/.index.$$
  trap 'rm -rf "$fresh"' EXIT
  git init -q "$fresh"
  cp "$1"/index "$fresh/.git/"
  for shared in "$1"/sharedindex.*; do
    if [ -f "$shared" ]; then cp "$shared" "$fresh/.git/"; fi
  done
  git --git-dir="$fresh/.git" --work-tree=. ls-files --stage -z
}

squash() {
  git init -q .
  git symbolic-ref HEAD "refs/heads/$1"
  git config user.name Developer
  git config user.email developer@example.com
  if [ "$2" = all ]; then git add -A; else git update-index --add --remove -z --stdin; fi
  GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z' \
    git commit -q --no-verify --allow-empty -m 'Initial commit'
  # What was not tracked before is not now either, and is no news.
  mkdir -p .git/info
  git ls-files -z --others --exclude-standard --directory --no-empty-directory | tr '\0\n' '\n?' |
    sed -e 's/[][\\*?!#]/\\&/g' -e 's/ $/\\ /' -e 's,^,/,' >> .git/info/exclude
  git status --porcelain
}

"$@"
