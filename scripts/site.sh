#!/usr/bin/env bash
# Builds the site from the documents into target/site/html; a link that leads nowhere is an error.
#
#   scripts/site.sh [--serve]      --serve: at http://127.0.0.1:8000 instead
#
# Needs Python with venv; mkdocs-material comes from PyPI, into an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

MKDOCS_VERSION=1.6.1
MATERIAL_VERSION=9.8.2
TOOLS=${MOBIFS_TOOLS:-$PWD/.cache/tools}/site
SITE=${CARGO_TARGET_DIR:-$PWD/target}/site

export NO_MKDOCS_2_WARNING=1
if [ "$(cat "$TOOLS/versions" 2>/dev/null)" != "$MKDOCS_VERSION $MATERIAL_VERSION" ]; then
  rm -rf "$TOOLS"
  python3 -m venv "$TOOLS"
  "$TOOLS/bin/pip" install --quiet "mkdocs==$MKDOCS_VERSION" "mkdocs-material==$MATERIAL_VERSION"
  echo "$MKDOCS_VERSION $MATERIAL_VERSION" >"$TOOLS/versions"
fi
rm -rf "$SITE"
python3 scripts/site_pages.py "$SITE/pages"
cp dist/site/mkdocs.yml "$SITE/"
if [ "${1:-}" = --serve ]; then
  exec "$TOOLS/bin/mkdocs" serve --config-file "$SITE/mkdocs.yml"
fi
"$TOOLS/bin/mkdocs" build --quiet --strict --config-file "$SITE/mkdocs.yml"
echo "$(find "$SITE/html" -name '*.html' | wc -l) pages in $SITE/html"
