// MobiFS with Node's own SQLite (Node 22.13 or newer): node node-sqlite.mjs EXTENSION DATABASE
import assert from 'node:assert/strict';
import { pathToFileURL } from 'node:url';
import { DatabaseSync } from 'node:sqlite';

const [extension, path] = process.argv.slice(2);

// Once in a process: the VFS stays when this connection is closed.
const loader = new DatabaseSync(':memory:', { allowExtension: true });
loader.loadExtension(extension);
loader.close();

const uri = pathToFileURL(path);
uri.searchParams.set('vfs', 'mobifs');
uri.searchParams.set('age_max_ms', '2000');
const database = new DatabaseSync(uri.href);
database.exec('CREATE TABLE IF NOT EXISTS notes(text)');
database.prepare('INSERT INTO notes VALUES (?)').run('remember the milk');

// The name of the column is not fixed: take the first value.
const [status] = Object.values(database.prepare('PRAGMA mobifs_status').get());
assert.equal(JSON.parse(status).class, 'relaxed');
database.close();
console.log(status);
