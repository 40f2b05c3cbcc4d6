#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# redis with an append-only file that is synced after every command: rewritten by a fork, killed, loaded again.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need redis-server redis-server redis-cli redis-tools; }

cli() { redis-cli -s socket "$@"; }

# start WORD…: a server behind the words, on a socket in this directory only.
start() {
  "$@" redis-server --port 0 --unixsocket socket --dir "$PWD" --save '' --appendonly yes --appendfsync always \
    --enable-debug-command local --auto-aof-rewrite-percentage 0 --daemonize no >>server.log 2>&1 &
  server=$!
  until_true 60 answers
}
# A server that has ended is not waited for.
answers() { alive "$server" || fail "the server ended: $(tail -n 3 server.log)"; [[ $(cli ping) = PONG ]]; }
rewritten() { cli info persistence | tr -d '\r' | grep -qx 'aof_rewrite_in_progress:0'; }

# commands WHO COUNT: keys of their own for each client, so that their order among each other changes nothing.
commands() {
  awk -v who="$1" -v count="$2" 'BEGIN {
    pad = sprintf("%400s", ""); gsub(" ", "bytes-", pad)
    for (n = 0; n < count; n++) {
      printf "SET %s:string:%d %d-%s\r\n", who, n % 500, n, substr(pad, 1, n % 300)
      printf "HSET %s:hash:%d field%d %d\r\n", who, n % 50, n % 40, n
      if (n % 3 == 0) printf "ZADD %s:sorted %d member%d\r\n", who, n * 7919 % 1000, n % 700
      if (n % 4 == 0) printf "RPUSH %s:list:%d %d\r\n", who, n % 9, n
      if (n % 5 == 0) printf "INCRBY %s:counter %d\r\n", who, n
      if (n % 7 == 0) printf "SETRANGE %s:bytes:%d %d %s\r\n", who, n % 11, n * 31 % 5000, substr(pad, 1, 200)
      if (n % 11 == 0) printf "DEL %s:string:%d\r\n", who, n * 13 % 500
      if (n % 501 == 500) printf "MULTI\r\nINCR %s:multi\r\nLPOP %s:list:0\r\nEXEC\r\n", who, who
    }
  }'
}

setup() {
  local who
  for who in a b c d; do commands "$who" "$(pick 1500 60000 30000)" >"$who.commands"; done
}

run() {
  local server client
  start "${wrap[@]}"
  cli --pipe <a.commands >/dev/null & client=$!
  cli --pipe <b.commands >/dev/null
  wait "$client"
  cli bgrewriteaof >/dev/null
  cli --pipe <c.commands >/dev/null
  until_true 60 rewritten
  cli debug digest >before
  kill -KILL "$server"; wait "$server" 2>/dev/null || true
  forget appendonlydir
  start "${wrap[@]}"
  cli debug digest >after
  cli --pipe <d.commands >/dev/null
  cli debug digest >end
  cli save >/dev/null
  cli shutdown nosave >/dev/null 2>&1 || true
  wait "$server" 2>/dev/null || true
  "${wrap[@]}" redis-check-aof appendonlydir/appendonly.aof.manifest >aof.log
  "${wrap[@]}" redis-check-rdb dump.rdb >rdb.log
}

# An untouched server loads what the other left.
check() {
  local server
  paste before after end
  tail -n 1 aof.log
  grep -c 'RDB looks OK' rdb.log
  start
  cli debug digest
  cli dbsize
  cli shutdown nosave >/dev/null 2>&1 || true
  wait "$server" 2>/dev/null || true
}

verbs "$@"
