/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Loads an extension, then does as SQLite's speedtest1: speedtest EXTENSION ARGUMENTS-OF-SPEEDTEST1. */
#include <stdio.h>

#include <sqlite3.h>

int speedtest1(int argc, char **argv);

int main(int argc, char **argv)
{
    sqlite3 *db;
    char *error = NULL;
    if (argc < 2)
        return 2;
    if (sqlite3_config(SQLITE_CONFIG_URI, 1) != SQLITE_OK || sqlite3_open(":memory:", &db) != SQLITE_OK ||
        sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1, NULL) != SQLITE_OK ||
        sqlite3_load_extension(db, argv[1], NULL, &error) != SQLITE_OK) {
        fprintf(stderr, "speedtest: %s: %s\n", argv[1], error ? error : "SQLite cannot load extensions");
        return 1;
    }
    sqlite3_close(db);
    argv[1] = argv[0];
    return speedtest1(argc - 1, argv + 1);
}
