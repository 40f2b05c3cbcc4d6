#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# RocksDB's db_bench reads keys at random, past the page cache, from a database larger than its own cache.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need db_bench rocksdb-tools ldb rocksdb-tools; }

# bench BENCHMARKS OPTION…: what follows from the seed.
bench() {
  local benchmarks=$1; shift
  "${wrap[@]}" db_bench --db="$PWD/db" --benchmarks="$benchmarks" --seed=7 --num="$(pick 20000 1000000 150000)" --value_size=400 \
    --cache_size=65536 --compression_type=none "$@" 2>&1
}

setup() {
  mkdir db
  wrap=()
  bench fillrandom,compact --use_direct_io_for_flush_and_compaction=1 >fill
}

run() { bench readrandom --use_direct_reads=1 --use_existing_db=1 --threads=2 --reads="$(pick 2000 200000 25000)" >read; }

check() {
  ldb --db=db checkconsistency 2>&1
  grep -oE '^[a-z]+ |\([0-9]+ of [0-9]+ found\)|[Cc]orrupt.*|.*([Ee]rror|[Ff]ail).*' read
}

verbs "$@"
