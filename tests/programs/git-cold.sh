#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# git reads a packed repository of which nothing is in the page cache: history, blobs, a check of all.
. "$(dirname "$(realpath "$0")")/lib.sh"

export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'

available() { need git git; }

# Bytes that do not compress, so that the pack is large.
setup() {
  local commit file
  git init -q -b main repository
  for ((commit = 1; commit <= $(pick 4 40 16); commit++)); do
    for file in 1 2 3 4; do
      openssl enc -aes-128-ctr -pass "pass:$commit-$file" -nosalt -pbkdf2 -iter 1 </dev/zero 2>/dev/null | head -c 300000 >"repository/file-$file" || true
    done
    git -C repository add -A
    git -C repository commit -q -m "commit $commit"
  done
  git -C repository gc -q --prune=now
}

cold_git() {
  forget repository/.git
  "${wrap[@]}" git -C repository "$@"
}

run() {
  cold_git log --stat --format=%H >log
  cold_git fsck --full --strict >fsck 2>&1
  cold_git archive --format=tar 'HEAD~2' >archive.tar
}

check() {
  cat fsck
  sha <log
  sha <archive.tar
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || verbs "$@"
