#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# sqlite3 reads a table that is in nobody's memory, from one end to the other and along an index.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need sqlite3 sqlite3; }

# A table whose rows lie in one order, and its index in another.
setup() {
  sqlite3 scan.db "PRAGMA page_size=4096; CREATE TABLE item (id INTEGER PRIMARY KEY, score INTEGER, body TEXT);
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $(pick 8000 400000 60000))
      INSERT INTO item SELECT i, i * 2654435761 % 1000003, hex(zeroblob(300)) || i FROM n;
    CREATE INDEX item_score ON item (score);"
}

QUERIES='PRAGMA cache_size=64; SELECT count(*), sum(length(body)) FROM item WHERE body LIKE "%99%";
  SELECT sum(length(body)) FROM item INDEXED BY item_score WHERE score BETWEEN 0 AND 500000;'

run() {
  forget scan.db
  query "$QUERIES" >found
}

# query TEXT: answered by a process of its own.
query() { "${wrap[@]}" sqlite3 scan.db "$1"; }

check() { cat found; }

[[ ${BASH_SOURCE[0]} != "$0" ]] || verbs "$@"
