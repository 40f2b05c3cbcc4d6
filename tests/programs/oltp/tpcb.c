// SPDX-License-Identifier: MIT OR Apache-2.0
// Transactions like those of TPC-B on a SQLite database, one after the other for so many seconds; prints their rate.
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ACCOUNTS = 100000, TELLERS = 10, STATEMENTS = 7 };

static sqlite3 *database;

static void check(int status, const char *what) {
  if (status == SQLITE_OK || status == SQLITE_DONE || status == SQLITE_ROW) return;
  fprintf(stderr, "tpcb: %s: %s\n", what, sqlite3_errmsg(database));
  exit(1);
}

static void execute(const char *sql) { check(sqlite3_exec(database, sql, NULL, NULL, NULL), sql); }

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + at.tv_nsec / 1e9;
}

static uint64_t dice = 0x9e3779b97f4a7c15;
static int below(int limit) {
  dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
  return (int)((dice >> 16) % (uint64_t)limit);
}

static void create(void) {
  execute("PRAGMA synchronous=OFF; BEGIN;"
          "CREATE TABLE branches (bid INTEGER PRIMARY KEY, balance INTEGER, filler TEXT);"
          "CREATE TABLE tellers (tid INTEGER PRIMARY KEY, bid INTEGER, balance INTEGER, filler TEXT);"
          "CREATE TABLE accounts (aid INTEGER PRIMARY KEY, bid INTEGER, balance INTEGER, filler TEXT);"
          "CREATE TABLE history (tid INTEGER, bid INTEGER, aid INTEGER, delta INTEGER, at TEXT, filler TEXT);"
          "INSERT INTO branches VALUES (0, 0, printf('%88s', ''));");
  char sql[160];
  for (int n = 0; n < TELLERS; n++) {
    snprintf(sql, sizeof sql, "INSERT INTO tellers VALUES (%d, 0, 0, printf('%%84s', ''));", n);
    execute(sql);
  }
  snprintf(sql, sizeof sql,
           "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < %d) "
           "INSERT INTO accounts SELECT i, 0, 0, printf('%%84s', '') FROM n;",
           ACCOUNTS - 1);
  execute(sql);
  execute("COMMIT;");
}

int main(int argc, char **argv) {
  const char *usage = "Usage: tpcb DATABASE create | tpcb DATABASE check | tpcb DATABASE delete|wal full|normal SECONDS\n";
  if (argc != 3 && argc != 5) return fputs(usage, stderr), 2;
  check(sqlite3_open(argv[1], &database), argv[1]);
  if (argc == 3) {
    if (strcmp(argv[2], "create") == 0) return create(), check(sqlite3_close(database), "closing"), 0;
    // Every sum is that of all deltas, or a transaction was lost or torn.
    sqlite3_stmt *sums;
    check(sqlite3_prepare_v2(database,
                             "SELECT coalesce(sum(delta), 0), (SELECT sum(balance) FROM accounts), (SELECT sum(balance) FROM tellers), "
                             "(SELECT sum(balance) FROM branches) FROM history",
                             -1, &sums, NULL),
          "the check");
    check(sqlite3_step(sums), "the check");
    int64_t all = sqlite3_column_int64(sums, 0);
    for (int at = 1; at < 4; at++)
      if (sqlite3_column_int64(sums, at) != all) return fprintf(stderr, "tpcb: sum %d is not that of the history\n", at), 1;
    return 0;
  }
  char pragmas[120];
  snprintf(pragmas, sizeof pragmas, "PRAGMA journal_mode=%s; PRAGMA synchronous=%s;", argv[2], argv[3]);
  execute(pragmas);
  static const char *const sql[STATEMENTS] = {
      "BEGIN IMMEDIATE",
      "UPDATE accounts SET balance = balance + ?1 WHERE aid = ?2",
      "SELECT balance FROM accounts WHERE aid = ?2",
      "UPDATE tellers SET balance = balance + ?1 WHERE tid = ?3",
      "UPDATE branches SET balance = balance + ?1 WHERE bid = 0",
      "INSERT INTO history VALUES (?3, 0, ?2, ?1, datetime('now'), printf('%22s', ''))",
      "COMMIT",
  };
  sqlite3_stmt *statement[STATEMENTS];
  for (int at = 0; at < STATEMENTS; at++) check(sqlite3_prepare_v2(database, sql[at], -1, &statement[at], NULL), sql[at]);
  double span = atof(argv[4]), began = now(), took;
  long transactions = 0;
  do {
    int delta = below(10001) - 5000, account = below(ACCOUNTS), teller = below(TELLERS);
    for (int at = 0; at < STATEMENTS; at++) {
      sqlite3_bind_int(statement[at], 1, delta);
      sqlite3_bind_int(statement[at], 2, account);
      sqlite3_bind_int(statement[at], 3, teller);
      check(sqlite3_step(statement[at]), sql[at]);
      check(sqlite3_reset(statement[at]), sql[at]);
    }
    transactions++;
    took = now() - began;
  } while (took < span);
  printf("rate %.3f\n", transactions / took);
  for (int at = 0; at < STATEMENTS; at++) sqlite3_finalize(statement[at]);
  check(sqlite3_close(database), "closing");
  return 0;
}
