'use strict';
// SQLite databases through MobiFS, with Node's own SQLite or the package better-sqlite3. README.md shows both.
const fs = require('node:fs');
const path = require('node:path');
const { pathToFileURL } = require('node:url');

// What the extension understands (docs/SQLITE.md), and what SQLite itself does. SQLite passes over names that
// nothing knows, and a promise would be lost to a letter.
const PARAMETERS = new Set(
  ('age_max_ms apply_idle_ms arena class direct_write_max_bytes flush_interval_ms interval_ms journal_bytes ' +
    'memory_budget_bytes policy quiet_age_min_ms quiet_ms slope_min_micropercent staleness_bytes ' +
    'staleness_max_bytes staleness_min_bytes window_points cache immutable mode modeof nolock psow').split(' '),
);

// The loadable extension for this machine; the variable MOBIFS_SQLITE_EXTENSION names another one.
function extensionPath() {
  const chosen =
    process.env.MOBIFS_SQLITE_EXTENSION ||
    path.join(__dirname, 'prebuilds', `linux-${process.arch}`, 'libmobifs.so');
  if (process.platform !== 'linux' || !fs.existsSync(chosen)) {
    throw new Error(
      `mobifs-sqlite has no extension for ${process.platform}-${process.arch} (${chosen} is not there); ` +
        'MOBIFS_SQLITE_EXTENSION can name one that you have built',
    );
  }
  return chosen;
}

// The name by which Node's SQLite opens a database through MobiFS, after `register`.
function databaseUri(file, parameters = {}) {
  if (file === '' || file === ':memory:') {
    throw new TypeError('a database that is in no file needs no MobiFS');
  }
  const uri = pathToFileURL(file);
  uri.searchParams.set('vfs', 'mobifs');
  for (const [name, value] of Object.entries(parameters)) {
    if (!PARAMETERS.has(name)) {
      throw new TypeError(`no parameter is called ${name}; see docs/SQLITE.md`);
    }
    uri.searchParams.set(name, String(value));
  }
  // SQLite decodes %20 and not +.
  uri.search = uri.search.replaceAll('+', '%20');
  return uri.href;
}

// Makes the VFS known to Node's own SQLite: `register(DatabaseSync)`, once in a process.
function register(DatabaseSync) {
  const loader = new DatabaseSync(':memory:', { allowExtension: true });
  loader.loadExtension(extensionPath());
  loader.close();
}

// Makes it the default VFS of better-sqlite3, which takes no URIs: `registerDefault(Database)`, once in a process.
// Every database is opened through MobiFS from then on; `PRAGMA mobifs_class` and others say the rest.
function registerDefault(Database) {
  const loader = new Database(':memory:');
  loader.loadExtension(extensionPath(), 'sqlite3_mobifs_default_init');
  loader.close();
}

module.exports = { databaseUri, extensionPath, register, registerDefault };
