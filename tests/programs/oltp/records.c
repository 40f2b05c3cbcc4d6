// SPDX-License-Identifier: MIT OR Apache-2.0
// Records of a Berkeley DB looked up or updated at random, one after the other for so many seconds; prints their rate.
#include <db.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RECORDS = 200000, VALUE_BYTES = 100 };

static void check(int status, const char *what) {
  if (status == 0) return;
  fprintf(stderr, "records: %s: %s\n", what, db_strerror(status));
  exit(1);
}

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + at.tv_nsec / 1e9;
}

static uint64_t dice = 0x9e3779b97f4a7c15;
static uint32_t below(uint32_t limit) {
  dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
  return (uint32_t)((dice >> 16) % limit);
}

// A record: its number as key; its number, how often it was written, and filling as value.
struct value {
  uint32_t number, writes;
  char filling[VALUE_BYTES - 8];
};

static DBT dbt(void *data, uint32_t bytes) {
  DBT out;
  memset(&out, 0, sizeof out);
  out.data = data, out.size = bytes, out.ulen = bytes, out.flags = DB_DBT_USERMEM;
  return out;
}

int main(int argc, char **argv) {
  const char *usage = "Usage: records DIRECTORY btree|hash create | records DIRECTORY btree|hash lookup|update SECONDS\n";
  if (argc < 4 || (argc == 4) != (strcmp(argv[3], "create") == 0)) return fputs(usage, stderr), 2;
  int is_new = argc == 4, updates = strcmp(argv[3], "update") == 0;
  DB_ENV *environment;
  DB *db;
  check(db_env_create(&environment, 0), "environment");
  check(environment->log_set_config(environment, DB_LOG_AUTO_REMOVE, 1), "log");
  // Smaller than the data, so that pages come from the file; large while it is made.
  check(environment->set_cachesize(environment, 0, is_new ? 64 << 20 : 1 << 20, 1), "cache");
  uint32_t parts = DB_CREATE | DB_PRIVATE | DB_INIT_MPOOL | DB_INIT_LOG | DB_INIT_TXN | DB_INIT_LOCK | DB_RECOVER;
  check(environment->open(environment, argv[1], parts, 0600), argv[1]);
  check(db_create(&db, environment, 0), "database");
  DBTYPE type = strcmp(argv[2], "hash") == 0 ? DB_HASH : DB_BTREE;
  check(db->set_pagesize(db, 4096), "page size");
  check(db->open(db, NULL, "records.db", NULL, type, DB_CREATE | DB_AUTO_COMMIT, 0600), "records.db");
  struct value value;
  memset(&value, 'x', sizeof value);
  uint32_t number;
  DBT key = dbt(&number, sizeof number), data = dbt(&value, sizeof value);
  if (is_new) {
    check(environment->set_flags(environment, DB_TXN_NOSYNC, 1), "flags");
    for (number = 0; number < RECORDS; number++) {
      value.number = number, value.writes = 0;
      check(db->put(db, NULL, &key, &data, 0), "put");
    }
  } else {
    double span = atof(argv[4]), began = now(), took;
    long done = 0;
    do {
      number = below(RECORDS);
      check(db->get(db, NULL, &key, &data, 0), "get");
      if (value.number != number) return fprintf(stderr, "records: record %u says it is %u\n", number, value.number), 1;
      // A transaction of its own, durable when it returns.
      if (updates) value.writes++, check(db->put(db, NULL, &key, &data, 0), "put");
      done++;
      took = now() - began;
    } while (took < span);
    printf("rate %.3f\n", done / took);
  }
  check(db->close(db, 0), "closing");
  check(environment->txn_checkpoint(environment, 0, 0, DB_FORCE), "checkpoint");
  check(environment->close(environment, 0), "closing");
  return 0;
}
