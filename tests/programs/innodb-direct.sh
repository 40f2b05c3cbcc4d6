#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# mariadb reads rows at random from an InnoDB table larger than its buffer pool, past the page cache.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need mariadbd mariadb-server-core mariadb-install-db mariadb-server-core mariadb mariadb-client-core; }

setup() {
  local mariadbd rows
  rows=$(pick 12000 400000 60000)
  become "$PWD" mysql
  "${as[@]}" mariadb-install-db --no-defaults --datadir="$PWD/data" --auth-root-authentication-method=normal --skip-test-db >install.log 2>&1
  server 0
  "${as[@]}" mariadb --no-defaults -S socket -u root -e 'CREATE DATABASE bench'
  client <<<"CREATE TABLE item (id INT PRIMARY KEY, score INT, body TEXT) ENGINE=InnoDB;
    INSERT INTO item SELECT seq, seq * 7919 % 10007, REPEAT(MD5(seq), 30) FROM seq_1_to_$rows;"
  stop TERM
  awk -v rows="$rows" -v count="$(pick 1000 100000 15000)" 'BEGIN {
    for (n = 0; n < count; n++) printf "SELECT score, LENGTH(body), MD5(body) FROM item WHERE id = %d;\n", 1 + n * 48271 % rows
  }' >reads.sql
}

run() {
  local mariadbd
  become "$PWD" mysql
  forget data
  server 0 "${wrap[@]}"
  client <reads.sql | sha >rows
  stop TERM
}

check() { cat rows; grep -iE 'corrupt|checksum|\[ERROR\]' server.log || true; }

verbs "$@"
