#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# postgres in a cluster of its own: pgbench by several clients, a crash and its recovery, checks of tables, indexes and checksums.
. "$(dirname "$(realpath "$0")")/lib.sh"
shopt -s nullglob

# Debian keeps the server's programs apart, by version; the newest serves.
for bin in /usr/lib/postgresql/*/bin; do PATH=$bin:$PATH; done
export PGDATABASE=bench PGUSER=postgres
unset PGPORT PGPASSWORD PGDATA

available() { need initdb postgresql postgres postgresql pgbench postgresql pg_amcheck postgresql psql postgresql-client; }

# With so few buffers pages are written and read again all the time.
server() {
  "${as[@]}" "$@" postgres -D data -k "$PWD" -c listen_addresses= -c unix_socket_permissions=0700 -c shared_buffers=1MB -c max_connections=20 \
    -c max_wal_size=32MB -c min_wal_size=32MB -c wal_buffers=64kB -c checkpoint_timeout=30s -c autovacuum_naptime=1s -c jit=off >>server.log 2>&1 &
  postgres=$!
  until_true 60 answers
}
answers() { alive "$postgres" || fail "the server ended: $(tail -n 3 server.log)"; "${as[@]}" psql -d postgres -qc 'select 1'; }
stop() { kill "-$1" "$postgres"; wait "$postgres" 2>/dev/null || true; until_true 30 none_in data; }

# What all clients together have added up to does not depend on who came first.
digest() {
  local query
  for query in 'select aid, bid, abalance from pgbench_accounts order by 1' 'select tid, bid, tbalance from pgbench_tellers order by 1' \
    'select bid, bbalance from pgbench_branches order by 1' 'select tid, bid, aid, delta from pgbench_history order by 1, 2, 3, 4' \
    'select id, md5(body) from document order by 1'; do
    "${as[@]}" "$@" psql -qAtc "$query" | sha
  done
  # The key that newer versions write into a dump differs each time.
  "${as[@]}" "$@" pg_dump -T pgbench_history | grep -vE '^(--|\\(un)?restrict)' | sort | sha
}

setup() { :; }

run() {
  local postgres client
  PGHOST=$PWD; export PGHOST
  become "$PWD" postgres
  "${as[@]}" "${wrap[@]}" initdb -D data -A trust -U postgres -E UTF8 --locale=C --data-checksums >initdb.log
  server "${wrap[@]}"
  "${as[@]}" "${wrap[@]}" createdb bench
  "${as[@]}" "${wrap[@]}" pgbench -q -i -s "$(pick 1 10)" >init.log 2>&1
  "${as[@]}" "${wrap[@]}" pgbench -n -c 4 -j 2 -t "$(pick 250 10000)" --random-seed=7 >bench.log 2>&1 & client=$!
  # Values too long for a page, beside the benchmark.
  "${as[@]}" "${wrap[@]}" psql -q -v ON_ERROR_STOP=1 -c "create table document as
    select id, (select string_agg(md5(id::text || n::text), '') from generate_series(1, 300) n) as body from generate_series(1, $(pick 400 10000)) id;
    create index on document (md5(body)); update document set body = body || id where id % 3 = 0;" -c 'vacuum document'
  wait "$client"
  digest "${wrap[@]}" >before
  stop QUIT

  forget data
  server "${wrap[@]}"
  digest "${wrap[@]}" >after
  "${as[@]}" "${wrap[@]}" psql -q -c 'vacuum full pgbench_accounts' -c 'reindex database bench' -c checkpoint
  "${as[@]}" "${wrap[@]}" pg_amcheck --install-missing --heapallindexed --parent-check bench >amcheck.log 2>&1
  stop INT
  "${as[@]}" "${wrap[@]}" pg_checksums --check -D data >checksums.log
}

check() {
  local postgres
  PGHOST=$PWD; export PGHOST
  become "$PWD" postgres
  paste before after
  sed -nE 's/^(Bad checksums|Data checksum version): */\1 /p' checksums.log
  grep -E 'number of (transactions actually processed|failed transactions)' bench.log
  cat amcheck.log
  grep -E 'PANIC|FATAL|ERROR|invalid page' server.log | grep -vE 'the database system is|terminating (connection|autovacuum)' || true
  server
  digest
  "${as[@]}" pg_amcheck --heapallindexed --parent-check bench 2>&1
  stop INT
}

verbs "$@"
