#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# LMDB reads its file through a mapping and writes it by calls: what Dwell cannot see must stay right.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need mdb_load lmdb-utils mdb_dump lmdb-utils mdb_copy lmdb-utils; }

# pairs WHO COUNT STEP: what mdb_load reads.
pairs() {
  printf 'VERSION=3\nformat=print\ntype=btree\nmapsize=1073741824\nHEADER=END\n'
  awk -v who="$1" -v count="$2" 'BEGIN {
    pad = sprintf("%500s", ""); gsub(" ", "value.", pad)
    for (n = 0; n < count; n++)
      printf " key-%08d\n %s %d %s\n", n * 48271 % 99999989, who, n, substr(pad, 1, n % 200 == 0 ? 3000 : n % 150)
  }'
  echo 'DATA=END'
}

setup() {
  mkdir plain subdirectory copy compact
  pairs first "$(pick 8000 400000 160000)" >first
  pairs second "$(pick 3000 150000 60000)" >second
}

run() {
  "${wrap[@]}" mdb_load -f first subdirectory
  forget subdirectory
  "${wrap[@]}" mdb_load -f second subdirectory
  "${wrap[@]}" mdb_load -n -f second plain/file.mdb
  forget subdirectory plain
  "${wrap[@]}" mdb_dump -p subdirectory >dump
  "${wrap[@]}" mdb_dump -n -p plain/file.mdb >dump-plain
  "${wrap[@]}" mdb_copy subdirectory copy
  "${wrap[@]}" mdb_copy -c subdirectory compact
  "${wrap[@]}" mdb_stat -a -e subdirectory >stat
}

check() {
  sha <dump
  sha <dump-plain
  mdb_dump -p subdirectory | sha
  mdb_dump -p copy | sha
  mdb_dump -p compact | grep -v '^mapsize=' | sha
  cat stat
}

verbs "$@"
