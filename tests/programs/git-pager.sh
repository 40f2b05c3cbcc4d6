#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The reads of git-cold.sh from packs that nobody may write, which `dwell run --pager` brings in.
. "$(dirname "$(realpath "$0")")/git-cold.sh"

available() {
  need git git chattr e2fsprogs
  [[ $(id -u) = 0 ]] || { echo 'needs root: chattr +i'; return 1; }
}

run() {
  paged '*.pack'
  chattr +i repository/.git/objects/pack/*.pack 2>/dev/null || fail 'this file system has no immutable files'
  trap 'chattr -i repository/.git/objects/pack/*.pack; leave $? "$PWD"' EXIT
  cold_git log --stat --format=%H >log
  cold_git fsck --full --strict >fsck 2>&1
  cold_git archive --format=tar 'HEAD~2' >archive.tar
  chattr -i repository/.git/objects/pack/*.pack
  trap 'leave $? "$PWD"' EXIT
}

verbs "$@"
