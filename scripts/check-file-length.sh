#!/usr/bin/env bash
# A source file has one job: every tracked or new source file stays under 800 lines.
set -euo pipefail
cd "$(dirname "$0")/.."

LIMIT_LINES=800
git ls-files -z --cached --others --exclude-standard -- '*.rs' '*.py' '*.sh' |
  # One that was removed is still listed until it is committed.
  while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
  xargs -0 -r wc -l |
  awk -v limit="$LIMIT_LINES" '
    $1 >= limit && $2 != "total" { lines = $1; $1 = ""; print substr($0, 2) ": " lines " lines (limit " limit ")"; failed = 1 }
    END { exit failed }' >&2
