#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# SQLite: the rate of transactions like those of TPC-B from one program. $CASE: journal mode and synchronous, as "wal full".
. "$(dirname "$(realpath "$0")")/../lib.sh"

available() { need cc gcc && header sqlite3.h libsqlite3-dev; }

setup() {
  compile tpcb -lsqlite3
  ./tpcb bench.db create
}

run() { "${wrap[@]}" ./tpcb bench.db ${CASE:?} "$SPAN"; }

check() { ./tpcb bench.db check; }

verbs "$@"
