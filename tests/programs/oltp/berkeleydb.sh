#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Berkeley DB: the rate at which records are looked up, or updated each in a transaction of its own. $CASE: as "hash update".
. "$(dirname "$(realpath "$0")")/../lib.sh"

available() { need cc gcc && header db.h libdb5.3-dev; }

setup() {
  local kind
  compile records -ldb-5.3
  for kind in btree hash; do
    mkdir "$kind"
    ./records "$kind" "$kind" create
  done
}

run() {
  local kind operation
  read -r kind operation <<<"${CASE:?}"
  "${wrap[@]}" ./records "$kind" "$kind" "$operation" "$SPAN"
}

check() { for kind in btree hash; do ./records "$kind" "$kind" lookup 0.1; done; }

verbs "$@"
