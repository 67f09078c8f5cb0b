#!/usr/bin/env bash
# Formatting, clippy, the purity of the engine, file lengths, comments, circles of files, documents, licences. Runs
# every step even when one fails, and names those that failed.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()

# step NAME COMMAND...
step() {
  local name=$1
  shift
  printf '\n== %s\n' "$name"
  "$@" || failed+=("$name")
}

scripts_parse() {
  local file
  for file in scripts/*.sh .ci/run; do bash -n "$file" || return 1; done
  python3 - <<'PYTHON'
import ast, pathlib
for directory in ("scripts", "bindings", "examples"):
    for path in sorted(pathlib.Path(directory).rglob("*.py")):
        ast.parse(path.read_text(), str(path))
PYTHON
}

licences() {
  if cargo deny --version >/dev/null 2>&1; then
    cargo deny --offline check licenses bans sources
  else
    echo "cargo-deny is not installed: licences only, from the lock file"
    python3 scripts/check_licences.py
  fi
}

# Both sides of a merge read as text in a document, and every other step accepts them.
no_conflicts() {
  local found
  found=$(git grep -nE '^(<{7}|>{7}) ' -- .) || return 0
  echo "marks of a merge that was not finished:"
  echo "$found"
  return 1
}

step "no conflicts of a merge" no_conflicts
step "format" cargo fmt --all --check
step "clippy" cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
step "purity of the engine: no standard library" scripts/check-purity.sh
step "file length" scripts/check-file-length.sh
# Rustdoc that begins with "Of" or "So many" reads well only beside the code, so it is kept away.
step "comments: subject of rustdoc, width" python3 scripts/check_comments.py
step "circles of files" python3 scripts/check_cycles.py
step "documents: links, anchors, named files" python3 scripts/check_docs.py
step "error messages: docs/TROUBLESHOOTING.md has all" python3 scripts/check_messages.py
step "crates to be published: descriptions" scripts/check-publish.sh --described
step "table of reliability" python3 scripts/reliability.py --check
step "scripts" scripts_parse
step "licences" licences

if [ "${#failed[@]}" -gt 0 ]; then
  printf '\nlint failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
  exit 1
fi
printf '\nlint: clean\n'
