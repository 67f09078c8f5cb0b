/* The MobiFS VFS for SQLite, linked into a C program together with SQLite.
 *
 *     #include <sqlite3.h>
 *     #include "mobifs.h"
 *
 *     mobifs_register(0);
 *     sqlite3_open_v2("file:notes.db?vfs=mobifs", &db, SQLITE_OPEN_READWRITE
 *         | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI, NULL);
 *
 * Link with libmobifs.a (and -lpthread -ldl -lm), or with libmobifs.so.
 */
#ifndef MOBIFS_H
#define MOBIFS_H

#include <stddef.h>

#include <sqlite3.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of the SQLite that the VFS is to work for; their order is part of the
 * interface. */
struct mobifs_host {
  sqlite3_vfs *(*find)(const char *);
  int (*vfs_register)(sqlite3_vfs *, int);
  const char *(*uri_parameter)(const char *, const char *);
  void *(*malloc64)(sqlite3_uint64);
  void (*log)(int, const char *, ...);
  int (*open_v2)(const char *, sqlite3 **, int, const char *);
  int (*exec)(sqlite3 *, const char *, int (*)(void *, int, char **, char **), void *, char **);
  int (*close)(sqlite3 *);
  int (*libversion_number)(void);
  int (*create_function)(sqlite3 *, const char *, int, int, void *,
                         void (*)(sqlite3_context *, int, sqlite3_value **),
                         void (*)(sqlite3_context *, int, sqlite3_value **),
                         void (*)(sqlite3_context *));
  void (*result_text)(sqlite3_context *, const char *, int, void (*)(void *));
};

int mobifs_register_with(const struct mobifs_host *host, int make_default);

/* What went wrong last in a call of SQLite's from this thread, in words: SQLite itself has only
 * a number for it. Writes it to out as a string, cut to room bytes with its end, and returns
 * its whole length without the end; 0 if nothing has gone wrong. */
size_t mobifs_last_error(char *out, size_t room);

/* Forgets that, so that after the next call mobifs_last_error tells of that call or of nothing. */
void mobifs_forget_last_error(void);

/* Makes the VFS "mobifs" known to the SQLite that this program is linked with, and the
 * default one if make_default is not 0. Returns 0, or 1 if SQLite is older than 3.24 or
 * refuses. */
static inline int mobifs_register(int make_default) {
  struct mobifs_host host = {
      sqlite3_vfs_find, sqlite3_vfs_register, sqlite3_uri_parameter, sqlite3_malloc64,
      sqlite3_log, sqlite3_open_v2, sqlite3_exec, sqlite3_close, sqlite3_libversion_number,
      sqlite3_create_function, sqlite3_result_text};
  return mobifs_register_with(&host, make_default);
}

#ifdef __cplusplus
}
#endif

#endif
