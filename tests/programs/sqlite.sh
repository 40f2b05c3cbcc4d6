#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# sqlite3 with a rollback journal and with a write-ahead log: two processes write thousands of transactions, a third reads, one is killed.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need sqlite3 sqlite3; }

PRAGMAS='PRAGMA synchronous=FULL; PRAGMA cache_size=16; PRAGMA wal_autocheckpoint=64;'

# transactions WHO COUNT: writes rows WHO, WHO+2, WHO+4, …; two writers never touch the same row.
transactions() {
  printf '.bail on\n.timeout 60000\n%s\n' "$PRAGMAS"
  awk -v who="$1" -v count="$2" 'BEGIN {
    for (n = 0; n < count; n++) {
      id = 2 * n + who; old = 2 * int(n * 7919 % (n + 1)) + who
      print "BEGIN IMMEDIATE;"
      printf "INSERT INTO item VALUES (%d, %d, hex(zeroblob(%d)) || \"%s\");\n", id, id * 2654435761 % 1000003, id % 200, "text of " id
      printf "UPDATE item SET score = score + %d WHERE id = %d;\n", n % 97, old
      if (n % 5 == 4) printf "DELETE FROM item WHERE id = %d;\n", 2 * int(n / 2) + who
      print "COMMIT;"
    }
  }'
}

setup() {
  local mode
  for mode in delete wal; do
    sqlite3 "$mode.db" "PRAGMA journal_mode=$mode; CREATE TABLE item (id INTEGER PRIMARY KEY, score INTEGER, body TEXT);
      CREATE INDEX item_score ON item (score);" >/dev/null
    cp "$mode.db" "killed-$mode.db"
  done
  transactions 0 "$(pick 800 20000 2400)" >writer-0.sql
  transactions 1 "$(pick 800 20000 2400)" >writer-1.sql
  transactions 0 100000 >endless.sql
  { printf '.timeout 60000\n'; for _ in $(seq 50); do echo 'SELECT count(*) < 0, total(length(body)) < 0 FROM item;'; done; } >reader.sql
}

begun() { [[ $(sqlite3 -cmd '.timeout 1000' "$1" 'SELECT count(*) > 0 FROM item') = 1 ]]; }

run() {
  local mode pids pid writer
  for mode in delete wal; do
    pids=()
    for part in writer-0 writer-1 reader; do
      "${wrap[@]}" sqlite3 "$mode.db" <"$part.sql" >"$mode.$part.out" & pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid"; done
    forget "$mode.db"
    "${wrap[@]}" sqlite3 "$mode.db" 'PRAGMA cache_size=16; PRAGMA integrity_check; SELECT count(*), sum(score), sum(length(body)) FROM item;
      VACUUM; REINDEX; PRAGMA integrity_check;' >"$mode.out"
    "${wrap[@]}" sqlite3 "$mode.db" '.backup copy-'"$mode.db"

    # How much a killed writer has done differs; what it leaves must be whole.
    "${wrap[@]}" sqlite3 "killed-$mode.db" <endless.sql >/dev/null 2>&1 & writer=$!
    sleep "$(pick 0.5 3)"
    until_true 60 begun "killed-$mode.db"
    kill -KILL "$writer"; wait "$writer" 2>/dev/null || true
    "${wrap[@]}" sqlite3 "killed-$mode.db" 'PRAGMA integrity_check; SELECT count(*) > 0 FROM item;' >"killed-$mode.out"
  done
}

check() {
  local mode database
  for mode in delete wal; do
    cat "$mode.out" "killed-$mode.out"
    for database in "$mode.db" "copy-$mode.db"; do
      echo "$database $(sqlite3 "$database" 'PRAGMA integrity_check') $(sqlite3 "$database" .dump | sha)"
    done
    sort -u "$mode.reader.out"
  done
}

verbs "$@"
