#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# git commits, packs, clones and checks a repository: many small files, child processes, mapped packs.
. "$(dirname "$(realpath "$0")")/lib.sh"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'

available() { need git git; }

wrapped_git() { "${wrap[@]}" git -c core.fsync=all -c core.fsyncMethod=fsync -c gc.auto=0 -c init.defaultBranch=main -c protocol.file.allow=always "$@"; }

setup() { seq -f 'line %.0f of a text that changes a little with every commit' 1 200000 >text; }

run() {
  local commit commits
  commits=$(pick 12 150)
  wrapped_git init -q repository
  mkdir repository/files
  for ((commit = 1; commit <= commits; commit++)); do
    sed -n "$((commit * 300)),$((commit * 300 + 8999))p" text | (cd repository/files && split -l 300 - "part-$((commit % 5))-")
    head -c "$((commit * 50000))" text >repository/large
    wrapped_git -C repository add -A
    wrapped_git -C repository commit -q -m "commit $commit"
  done
  wrapped_git -C repository fsck --full --strict >fsck-loose 2>&1
  forget repository/.git
  wrapped_git -C repository -c pack.threads=2 gc -q --aggressive --prune=now
  forget repository/.git
  wrapped_git -C repository fsck --full --strict >fsck-packed 2>&1
  wrapped_git clone -q --no-local --no-hardlinks "file://$PWD/repository" clone
  wrapped_git -C clone checkout -q -b other "HEAD~$((commits / 2))"
  wrapped_git -C clone checkout -q main
  wrapped_git -C repository archive --format=tar HEAD >archive.tar
}

check() {
  local repository
  cat fsck-loose fsck-packed
  for repository in repository clone; do
    git -C "$repository" fsck --full --strict 2>&1
    git -C "$repository" rev-parse main 'main^{tree}'
    git -C "$repository" status --porcelain
    git -C "$repository" rev-list --objects --all | sort | sha
  done
  sha <archive.tar
}

verbs "$@"
