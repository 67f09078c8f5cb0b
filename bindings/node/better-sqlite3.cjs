// MobiFS with the package better-sqlite3: node better-sqlite3.cjs EXTENSION DATABASE
//
// Its SQLite does not take URIs, so MobiFS is made the default VFS, and PRAGMAs say the rest.
const assert = require('node:assert/strict');
const Database = require('better-sqlite3');

const [extension, path] = process.argv.slice(2);

// Once in a process: from now on every database is opened through MobiFS.
const loader = new Database(':memory:');
loader.loadExtension(extension, 'sqlite3_mobifs_default_init');
loader.close();

const database = new Database(path);
database.pragma('journal_mode = WAL');
// In WAL mode better-sqlite3 has `synchronous = NORMAL`, with which SQLite promises of no single
// commit that it is durable. For that, both of these:
database.pragma('mobifs_class = durable');
database.pragma('synchronous = FULL');
database.exec('CREATE TABLE IF NOT EXISTS notes(text)');
database.prepare('INSERT INTO notes VALUES (?)').run('remember the milk');

const status = database.pragma('mobifs_status', { simple: true });
assert.equal(JSON.parse(status).class, 'durable');
assert.equal(JSON.parse(status).bytes_at_risk, 0);
database.close();
console.log(status);
