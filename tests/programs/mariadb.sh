#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# mariadb in a directory of its own: InnoDB past the page cache and Aria through it, a kill, recovery, checks and dumps.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() {
  need mariadbd mariadb-server-core mariadb-install-db mariadb-server-core mariadb mariadb-client-core mariadb-check mariadb-client-core \
    mariadb-dump mariadb-client
}

# statements WHO COUNT: rows of their own for each client.
statements() {
  awk -v who="$1" -v count="$2" 'BEGIN {
    for (n = 0; n < count; n++) {
      id = 3 * n + who
      print "BEGIN;"
      printf "INSERT INTO item VALUES (%d, %d, REPEAT(MD5(%d), %d));\n", id, id * 7919 % 10007, id, 1 + id % 60
      printf "UPDATE item SET score = score + %d WHERE id = %d;\n", n % 97, 3 * int(n * 31 % (n + 1)) + who
      if (n % 6 == 5) printf "DELETE FROM item WHERE id = %d;\n", 3 * int(n / 2) + who
      print "COMMIT;"
      if (n % 8 == 0) printf "INSERT INTO note VALUES (%d, REPEAT(\"note %d \", %d));\n", id, id, id % 100
    }
  }'
}

dump() { "${as[@]}" "$@" mariadb-dump --no-defaults -S socket -u root --skip-dump-date --order-by-primary bench | grep -v '^/\*M!999999' | sha; }
# A row that is deleted and not yet purged is worth a warning to mariadb-check; so all are purged first.
verify() {
  "${as[@]}" mariadb --no-defaults -S socket -u root -e 'SET GLOBAL innodb_max_purge_lag_wait=0'
  "${as[@]}" "$@" mariadb-check --no-defaults -S socket -u root --extended bench
}

setup() {
  local who
  for who in 0 1 2; do statements "$who" "$(pick 400 15000)" >"$who.sql"; done
}

run() {
  local mariadbd who pids=() pid
  become "$PWD" mysql
  "${as[@]}" "${wrap[@]}" mariadb-install-db --no-defaults --datadir="$PWD/data" --auth-root-authentication-method=normal --skip-test-db >install.log 2>&1
  server 0 "${wrap[@]}"
  "${as[@]}" mariadb --no-defaults -S socket -u root -e 'CREATE DATABASE bench'
  client "${wrap[@]}" <<<'CREATE TABLE item (id INT PRIMARY KEY, score INT, body TEXT, KEY (score)) ENGINE=InnoDB;
    CREATE TABLE note (id INT PRIMARY KEY, body TEXT) ENGINE=Aria TRANSACTIONAL=1;'
  for who in 0 1 2; do client "${wrap[@]}" <"$who.sql" & pids+=($!); done
  for pid in "${pids[@]}"; do wait "$pid"; done
  dump "${wrap[@]}" >before
  stop KILL

  forget data
  server 0 "${wrap[@]}"
  dump "${wrap[@]}" >after
  verify "${wrap[@]}" >verify.log
  client "${wrap[@]}" <<<'ALTER TABLE item ENGINE=InnoDB, FORCE; OPTIMIZE TABLE note;' >optimize.log
  stop TERM

  # The same pages by the kernel's asynchronous calls: whatever route they take, they are the same bytes.
  forget data
  server 1 "${wrap[@]}"
  client "${wrap[@]}" <<<'UPDATE item SET score = score + 1, body = CONCAT(body, id) WHERE id % 5 = 0;'
  dump "${wrap[@]}" >end
  stop TERM
  "${as[@]}" "${wrap[@]}" innochecksum data/bench/item.ibd >innochecksum.log 2>&1
}

check() {
  local mariadbd
  become "$PWD" mysql
  paste before after end
  cat verify.log innochecksum.log
  grep -iE 'corrupt|checksum|\[ERROR\]' server.log || true
  server 0
  dump
  verify
  client <<<'SELECT COUNT(*), SUM(score), SUM(LENGTH(body)) FROM item; SELECT COUNT(*), SUM(LENGTH(body)) FROM note;'
  stop TERM
}

verbs "$@"
