#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# sysbench fileio makes files, reads and writes them at random with its own validation, and opens them anew each time.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need sysbench sysbench; }

SETS='direct:direct:1 buffered::1 threads:direct:4 dsync:dsync:4'

# fileio SET COMMAND MODE: one call of sysbench on one set of files.
fileio() {
  local name flags threads
  IFS=: read -r name flags threads <<<"$1"
  (cd "$name" && "${wrap[@]}" sysbench fileio --rand-seed=7 --file-num=8 --file-total-size="$(pick 16M 512M 32M)" --file-block-size=8192 \
    --file-test-mode="$3" --validate=on --threads="$threads" --time=0 --events="$(pick 2048 65536 8192)" \
    ${flags:+--file-extra-flags="$flags"} "$2")
}

setup() { local set; for set in $SETS; do mkdir "${set%%:*}"; done; }

run() {
  local set name mode
  for set in $SETS; do
    name=${set%%:*}
    fileio "$set" prepare rndrw >"$name.prepare"
    for mode in rndrw seqrewr rndrd seqrd; do
      forget "$name"
      fileio "$set" run "$mode" >"$name.$mode" 2>&1
    done
  done
  mkdir gone
  (cd gone && "${wrap[@]}" sysbench fileio --file-num=4 --file-total-size=4M prepare && "${wrap[@]}" sysbench fileio --file-num=4 --file-total-size=4M cleanup) >gone.log
}

# What is written differs from run to run; every block carries a checksum of itself and its place, read here without Dwell.
check() {
  local set name
  wrap=()
  for set in $SETS; do
    name=${set%%:*}
    fileio "$set" run seqrd >"$name.untouched" 2>&1
    grep -hiE 'validat|error|fatal|total number of events' "$name".{rndrw,seqrewr,rndrd,seqrd,untouched} | sort | uniq -c
    (cd "$name" && stat -c '%n %s' test_file.*)
  done
  find gone -type f | wc -l
}

verbs "$@"
