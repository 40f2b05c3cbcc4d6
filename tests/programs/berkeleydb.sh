#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Berkeley DB loads, verifies and dumps trees and hashes of several page sizes, with a cache far smaller than the data.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need db5.3_load db5.3-util db5.3_dump db5.3-util db5.3_verify db5.3-util; }

KINDS='btree:512 btree:4096 btree:65536 hash:1024 hash:4096'

setup() {
  mkdir home
  echo 'set_cachesize 0 524288 1' >home/DB_CONFIG
  # Keys in an order that is not theirs; values from nothing to several pages.
  awk -v count="$(pick 30000 300000 90000)" 'BEGIN {
    pad = sprintf("%600s", ""); gsub(" ", "value.", pad)
    for (n = 0; n < count; n++) {
      key = n * 48271 % 2147483647
      printf "key-%010d\n%d %s\n", key, n, substr(pad, 1, n % 100 == 0 ? 3000 : n % 90)
    }
  }' >pairs
  awk 'NR % 6 < 2' pairs >more
}

run() {
  local kind name
  for kind in $KINDS; do
    name=${kind/:/-}.db
    "${wrap[@]}" db5.3_load -h home -T -t "${kind%:*}" -c "db_pagesize=${kind#*:}" -f pairs "$name"
    # A second load finds its pages on the device: it reads, changes and writes them again.
    forget "home/$name"
    sed 's/^[0-9]/again &/' more | "${wrap[@]}" db5.3_load -h home -T -t "${kind%:*}" "$name"
    forget "home/$name"
    "${wrap[@]}" db5.3_verify -h home "$name"
    "${wrap[@]}" db5.3_dump -h home -p "$name" >"dump.$name"
    { grep -v '^db_pagesize=' "dump.$name"; } | "${wrap[@]}" db5.3_load -h home "copy-$name"
  done
}

check() {
  local kind name
  for kind in $KINDS; do
    name=${kind/:/-}.db
    db5.3_verify -h home "$name" && db5.3_verify -h home "copy-$name"
    echo "$name $(wc -l <"dump.$name") $(sha <"dump.$name") $(db5.3_dump -h home -p "$name" | sha) $(db5.3_dump -h home -p "copy-$name" | sha)"
  done
}

verbs "$@"
