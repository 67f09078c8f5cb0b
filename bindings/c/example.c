/* A C program with MobiFS linked in: opens the database named by its argument, writes to it
 * durably, asks for its status, and shows what an error says. Exits with 0 if all of that is
 * as it should be.
 *
 *     cc example.c -I../../crates/sqlite-extension/include libmobifs.a -lsqlite3 -lpthread -ldl -lm
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mobifs.h"

#define OPEN_FLAGS (SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI)

static void expect(int is_so, const char *what) {
  if (!is_so) {
    fprintf(stderr, "failed: %s\n", what);
    exit(1);
  }
}

/* The first column of the first row, in memory of SQLite's. */
static char *text_of(sqlite3 *database, const char *statement) {
  sqlite3_stmt *prepared = NULL;
  int code = sqlite3_prepare_v2(database, statement, -1, &prepared, NULL);
  expect(code == SQLITE_OK, statement);
  expect(sqlite3_step(prepared) == SQLITE_ROW, statement);
  char *text = sqlite3_mprintf("%s", sqlite3_column_text(prepared, 0));
  sqlite3_finalize(prepared);
  return text;
}

static sqlite3 *open_database(const char *path, const char *parameters, int *code) {
  sqlite3 *database = NULL;
  char *uri = sqlite3_mprintf("file:%s?vfs=mobifs&%s", path, parameters);
  *code = sqlite3_open_v2(uri, &database, OPEN_FLAGS, NULL);
  sqlite3_free(uri);
  return database;
}

static void show_an_error(const char *path) {
  char reason[256];
  int code;
  mobifs_forget_last_error();
  expect(mobifs_last_error(NULL, 0) == 0, "nothing has gone wrong yet");
  sqlite3 *database = open_database(path, "class=sometimes", &code);
  sqlite3_close(database);
  expect(code == SQLITE_CANTOPEN, "a class that there is not is refused");
  size_t length = mobifs_last_error(reason, sizeof reason);
  expect(length == strlen(reason) && strstr(reason, "class") != NULL, "the reason names it");
  char beginning[8];
  expect(mobifs_last_error(beginning, sizeof beginning) == length, "the length is the whole");
  expect(strncmp(beginning, reason, 7) == 0 && beginning[7] == 0, "what does not fit is cut");
  printf("refused: %s\n", reason);
}

int main(int count, char **arguments) {
  int code;
  expect(count == 2, "usage: example DATABASE");
  expect(mobifs_register(0) == 0, "the VFS is registered");
  show_an_error(arguments[1]);

  sqlite3 *database = open_database(arguments[1], "class=durable", &code);
  expect(code == SQLITE_OK, "the database opens");
  const char *statements = "CREATE TABLE t(a); INSERT INTO t VALUES (1), (2), (3)";
  expect(sqlite3_exec(database, statements, NULL, NULL, NULL) == SQLITE_OK, statements);
  char *status = text_of(database, "PRAGMA mobifs_status");
  expect(strstr(status, "\"class\":\"durable\"") != NULL, "the database is durable");
  printf("status: %s\n", status);
  sqlite3_free(status);
  char *rows = text_of(database, "SELECT count(*) FROM t");
  expect(strcmp(rows, "3") == 0, "all rows are there");
  sqlite3_free(rows);
  expect(sqlite3_close(database) == SQLITE_OK, "the database closes");
  return 0;
}
