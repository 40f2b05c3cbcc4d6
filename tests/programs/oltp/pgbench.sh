#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# postgres: the rate of pgbench's TPC-B-like transactions from one client; the server is what is wrapped. $CASE: its settings, as
# "synchronous_commit=on shared_buffers=1MB".
. "$(dirname "$(realpath "$0")")/../lib.sh"
shopt -s nullglob

for bin in /usr/lib/postgresql/*/bin; do PATH=$bin:$PATH; done
export PGDATABASE=bench PGUSER=postgres
unset PGPORT PGPASSWORD PGDATA

available() { need initdb postgresql postgres postgresql pgbench postgresql psql postgresql-client; }

# server [WORDS…]: with the settings of $CASE; what it prints itself is kept.
server() {
  local setting settings=()
  for setting in ${CASE:-}; do settings+=(-c "$setting"); done
  "${as[@]}" "$@" postgres -D data -k "$PWD" -c listen_addresses= -c unix_socket_permissions=0700 -c max_connections=10 -c jit=off \
    "${settings[@]}" >>server.log 2>&1 &
  postgres=$!
  until_true 60 answers
}
answers() { alive "$postgres" || fail "the server ended: $(tail -n 3 server.log)"; "${as[@]}" psql -d postgres -qc 'select 1'; }
stop() { kill -INT "$postgres"; wait "$postgres" || fail "the server ended badly: $(tail -n 3 server.log)"; }

begin() {
  become "$PWD" postgres
  PGHOST=$PWD; export PGHOST
}

setup() {
  local postgres
  begin
  "${as[@]}" initdb -D data -A trust -U postgres -E UTF8 --locale=C >initdb.log
  CASE='fsync=off' server
  "${as[@]}" createdb bench
  "${as[@]}" pgbench -q -i -s 10 >init.log 2>&1
  stop
}

run() {
  local postgres
  begin
  server "${wrap[@]}"
  # Whole seconds are what it takes; what it says is without the time of connecting.
  "${as[@]}" pgbench -n -c 1 -j 1 -T "$(awk -v span="$SPAN" 'BEGIN { printf "%d", span < 1 ? 1 : span + 0.5 }')" --random-seed=7 >bench.log 2>&1
  stop
  awk '/^tps = .*without|^tps = [0-9.]+$/ { print "rate", $3; found = 1 } END { exit !found }' bench.log
}

# What all transactions have added to accounts, tellers and branches is the same.
check() {
  local postgres query
  begin
  server
  for query in 'sum(abalance) from pgbench_accounts' 'sum(tbalance) from pgbench_tellers' 'sum(bbalance) from pgbench_branches'; do
    "${as[@]}" psql -qAtc "select $query"
  done | sort -u | wc -l | grep -qx 1 || fail 'the sums differ'
  stop
}

verbs "$@"
