#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# RocksDB's db_bench fills, overwrites, deletes, compacts and reads databases past the page cache and through it.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need db_bench rocksdb-tools ldb rocksdb-tools; }

DATABASES='direct buffered synced'

# bench DATABASE BENCHMARKS OPTION…: keys and values follow from the seed, since one thread writes.
bench() {
  local name=$1 benchmarks=$2; shift 2
  "${wrap[@]}" db_bench --db="$PWD/$name" --benchmarks="$benchmarks" --seed=7 --write_buffer_size=1048576 --target_file_size_base=524288 \
    --max_bytes_for_level_base=2097152 --cache_size=65536 --open_files=64 --compression_type=none --value_size=200 "$@" 2>&1
}

setup() { local name; for name in $DATABASES; do mkdir "$name"; done; }

run() {
  local keys direct='--use_direct_reads=1 --use_direct_io_for_flush_and_compaction=1'
  keys=$(pick 20000 1000000 60000)
  # shellcheck disable=SC2086 # $direct is two words
  {
    bench direct fillrandom,overwrite,compact,readrandom,verifychecksum $direct --num="$keys" >direct.fill
    bench direct readrandom,readseq,readreverse,seekrandom $direct --use_existing_db=1 --num="$keys" --reads="$((keys / 4))" --threads=4 >direct.read
    bench buffered fillseq,updaterandom,deleterandom,compact,verifychecksum --num="$keys" --use_fsync=1 >buffered.fill
  }
  forget buffered
  bench buffered readrandom,readmissing,multireadrandom --use_existing_db=1 --num="$keys" --reads="$((keys / 4))" --threads=2 >buffered.read
  bench synced fillrandom,readrandom --sync=1 --num="$((keys / 20))" >synced.fill
}

check() {
  local name
  for name in $DATABASES; do
    echo "$name: $(ldb --db="$name" checkconsistency 2>&1)"
    ldb --db="$name" --hex scan >"$name.scan"
    echo "$(wc -l <"$name.scan") $(sha <"$name.scan")"
    # How often keys were found, as each benchmark says it; failures are said in words.
    grep -hoE '^[a-z]+ |\([0-9]+ of [0-9]+ found\)|[Cc]orrupt.*|.*([Ee]rror|[Ff]ail).*' "$name".fill "$name".read 2>/dev/null || true
  done
}

verbs "$@"
