#!/usr/bin/env bash
# A source file has one job: every tracked or new source file stays under 800 lines.
set -euo pipefail
cd "$(dirname "$0")/.."

LIMIT_LINES=800
status=0
while IFS= read -r file; do
  [ -f "$file" ] || continue
  lines=$(wc -l <"$file")
  if [ "$lines" -ge "$LIMIT_LINES" ]; then
    echo "$file: $lines lines (limit $LIMIT_LINES)" >&2
    status=1
  fi
done < <(git ls-files --cached --others --exclude-standard -- '*.rs' '*.py' '*.sh')
exit $status
