#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# DuckDB scans and sorts a table that is larger than the memory that it may use and in nobody's cache.
. "$(dirname "$(realpath "$0")")/lib.sh"

# A Python with the module duckdb, which PyPI has.
python=${DUCKDB_PYTHON:-python3}

available() { "$python" -c 'import duckdb' 2>/dev/null || { echo 'not installed: duckdb (PyPI; DUCKDB_PYTHON names a Python that has it)'; return 1; }; }

setup() {
  "$python" - "$(pick 400000 20000000 4000000)" <<'PYTHON'
import sys
import duckdb
connection = duckdb.connect("scan.duckdb")
connection.execute(f"""
    CREATE TABLE item AS SELECT i AS id, hash(i) % 1000003 AS score, md5(i::VARCHAR) AS body
    FROM range({sys.argv[1]}) AS of (i)
""")
connection.close()
PYTHON
  cat >scan.py <<'PYTHON'
import duckdb
connection = duckdb.connect("scan.duckdb", read_only=True, config={"memory_limit": "64MB", "threads": 2})
for query in (
    "SELECT count(*), sum(score) FROM item WHERE body LIKE '%99%'",
    "SELECT score % 10, max(body), count(*) FROM item GROUP BY 1 ORDER BY 1",
):
    print(connection.execute(query).fetchall())
PYTHON
}

run() {
  forget scan.duckdb
  "${wrap[@]}" "$python" scan.py >found
}

check() { cat found; }

verbs "$@"
