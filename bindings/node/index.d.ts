/** The loadable extension for this machine. Throws where there is none. */
export function extensionPath(): string;

/** Parameters of docs/SQLITE.md; sizes are bytes or text with a unit ("64MiB"). */
export interface Parameters {
  class?: 'relaxed' | 'durable';
  age_max_ms?: number;
  staleness_max_bytes?: number | string;
  memory_budget_bytes?: number | string;
  journal_bytes?: number | string;
  arena?: string;
  policy?: 'tpl' | 'interval' | 'quiet' | 'staleness' | 'fsync';
  [name: string]: string | number | undefined;
}

/** What `new DatabaseSync` takes to open the file through MobiFS. Throws for a parameter that does not exist. */
export function databaseUri(file: string, parameters?: Parameters): string;

/** Makes the VFS known to `node:sqlite`, once in a process. */
export function register(DatabaseSync: new (path: string, options: { allowExtension: true }) => {
  loadExtension(path: string): void;
  close(): void;
}): void;

/** Makes it the default VFS of `better-sqlite3`, once in a process. */
export function registerDefault(Database: new (path: string) => {
  loadExtension(path: string, entry: string): unknown;
  close(): unknown;
}): void;
