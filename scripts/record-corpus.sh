#!/usr/bin/env bash
# Records what real programs do to files, as traces.
#
#   scripts/record-corpus.sh [--install] [DIRECTORY] [PROGRAM...]
#
# DIRECTORY (default: target/traces) gets one PROGRAM.parquet each; programs are git, sqlite,
# npm, packages, mail, photos, browser, desk (ten minutes, most of them pauses), and desk-u1 to
# desk-u5, the same work by five scripted users, five minutes each. One that is not installed is
# skipped with a message; --install installs them all first (Debian, root). Nothing is
# fetched: all data is made here, the same on each run. Between the steps stands what a user would
# do, as `touch` events.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(strace git sqlite3 npm notmuch libimage-exiftool-perl imagemagick chromium python3)
PROGRAMS=(git sqlite npm packages mail photos browser desk desk-u1 desk-u2 desk-u3 desk-u4 desk-u5)
MOBIFS=${MOBIFS:-$PWD/target/release/mobifs}

say() { printf 'corpus: %s\n' "$*"; }
die() { printf 'corpus: %s\n' "$*" >&2; exit 1; }

if [ "${1:-}" = --install ]; then
  shift
  apt-get update -q || true
  apt-get install -q -y -o DPkg::Lock::Timeout=600 --no-install-recommends "${PACKAGES[@]}"
fi
out=$(realpath -m "${1:-target/traces}")
[ $# -gt 0 ] && shift
[ $# -gt 0 ] && PROGRAMS=("$@")
[ -x "$MOBIFS" ] || die "there is no $MOBIFS; build it (make build), or set MOBIFS"
command -v strace >/dev/null || die "recording needs strace (apt install strace)"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Each program is a function that runs in the root, with an empty home; `click` is the user.
cat >"$work/lib.sh" <<'LIB'
set -euo pipefail
export HOME=$PWD/home LC_ALL=C GIT_AUTHOR_DATE="2024-01-01T00:00:00Z"
export GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE
mkdir -p "$HOME"
click() { echo touch >"$MOBIFS_TOUCH_FIFO"; sleep "${1:-0.3}"; }

# text SEED LINES: lines that are the same for the same seed.
text() {
  awk -v seed="$1" -v lines="$2" 'BEGIN { srand(seed); for (i = 0; i < lines; i++) {
    line = ""; for (j = 0; j < 9; j++) line = line sprintf("%x ", int(rand() * 65536)); print line } }'
}

run_git() {
  mkdir -p git && cd git
  git init -q . && git config user.name T && git config user.email t@example.org
  for commit in 1 2 3 4 5 6; do
    click
    mkdir -p "d$commit"
    for file in 1 2 3 4 5; do text "$commit$file" 60 >"d$commit/f$file.txt"; done
    text "$commit" 200 >shared.txt
    git add -A && git commit -q -m "change $commit"
  done
  click; git checkout -q -b side HEAD~3; text 99 50 >side.txt; git add -A; git commit -q -m side
  click; git checkout -q -; git merge -q side -m merge
  click; git gc -q
  click; git log --stat >/dev/null; git status --short
}

run_sqlite() {
  mkdir -p notes chat && sqlite3 notes/notes.db 'CREATE TABLE note(id INTEGER PRIMARY KEY, text);'
  sqlite3 chat/chat.db 'PRAGMA journal_mode=WAL; CREATE TABLE message(id INTEGER PRIMARY KEY, sender, text);' >/dev/null
  for round in $(seq 1 12); do
    click
    for row in 1 2 3; do
      echo "INSERT INTO note(text) VALUES(hex(zeroblob($((row * 200)))));"
      echo "UPDATE note SET text = text || '$round' WHERE id % 5 = $((round % 5));"
    done | sqlite3 notes/notes.db
    for row in $(seq 1 10); do
      echo "INSERT INTO message(sender, text) VALUES($((row % 3)), hex(zeroblob(150)));"
    done | sqlite3 chat/chat.db
  done
  click; echo 'DELETE FROM note WHERE id % 3 = 0; VACUUM;' | sqlite3 notes/notes.db
}

run_npm() {
  mkdir -p npm/packages npm/project && cd npm
  for number in $(seq 1 12); do
    mkdir -p "packages/p$number/lib"
    echo "{\"name\":\"p$number\",\"version\":\"1.0.$number\",\"main\":\"lib/a.js\"}" >"packages/p$number/package.json"
    for file in a b c d; do { echo '/*'; text "$number" 40; echo '*/'; } >"packages/p$number/lib/$file.js"; done
    (cd packages && tar czf "p$number.tgz" --transform 's,^p[0-9]*,package,' "p$number")
  done
  cd project && echo '{"name":"project","version":"1.0.0"}' >package.json
  click; npm install --offline --no-audit --no-fund --loglevel=error ../packages/p{1,2,3,4,5,6}.tgz
  click; npm install --offline --no-audit --no-fund --loglevel=error ../packages/p{7,8,9,10,11,12}.tgz
  click; npm uninstall --offline --no-audit --no-fund --loglevel=error p3
}

run_packages() {
  mkdir -p packages/system/var/lib/dpkg/{info,updates,triggers} packages/made && cd packages
  : >system/var/lib/dpkg/status; : >system/var/lib/dpkg/available
  for number in 1 2 3 4 5; do
    mkdir -p "made/p$number/DEBIAN" "made/p$number/usr/share/p$number"
    printf 'Package: p%s\nVersion: 1.%s\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: made\n' \
      "$number" "$number" >"made/p$number/DEBIAN/control"
    for file in 1 2 3 4 5 6; do text "$number$file" 100 >"made/p$number/usr/share/p$number/$file"; done
    dpkg-deb --root-owner-group -Zgzip -b "made/p$number" >/dev/null
  done
  dpkg="dpkg --root=$PWD/system --log=$PWD/log --force-not-root --force-bad-path"
  click; $dpkg -i made/p1.deb made/p2.deb made/p3.deb >/dev/null
  click; $dpkg -i made/p4.deb made/p5.deb >/dev/null
  click; $dpkg -r p2 >/dev/null
  click; $dpkg -i made/p2.deb >/dev/null
}

run_mail() {
  mkdir -p mail/{cur,new,tmp} && export NOTMUCH_CONFIG=$PWD/notmuch-config MAILDIR=$PWD/mail
  printf '[database]\npath=%s/mail\n[user]\nname=T\nprimary_email=t@example.org\n' "$PWD" >notmuch-config
  for round in 1 2 3 4; do
    click
    for number in $(seq 1 40); do
      { printf 'From: a%s@example.org\nTo: t@example.org\nSubject: mail %s\nDate: Mon, 01 Jan 2024 00:%02d:00 +0000\nMessage-ID: <%s.%s@example.org>\n\n' \
          "$((number % 7))" "$number" "$number" "$round" "$number"; text "$round$number" 30; } >"mail/tmp/$round.$number"
      mv "mail/tmp/$round.$number" "mail/new/$round.$number"
    done
    notmuch new --quiet
    notmuch tag +read -- from:a1@example.org
    notmuch search subject:mail >/dev/null
  done
}

run_photos() {
  mkdir -p camera library/thumbnails library/originals
  sqlite3 library/photos.db 'CREATE TABLE photo(name PRIMARY KEY, taken, thumbnail);'
  for number in $(seq 1 10); do
    click 0.1
    convert -size 1600x1200 -seed "$number" plasma:red-blue -quality 85 "camera/$number.jpg"
    exiftool -q -overwrite_original -DateTimeOriginal="2024:01:01 00:$(printf %02d "$number"):00" "camera/$number.jpg"
    cp "camera/$number.jpg" "library/originals/$number.jpg"
    convert "library/originals/$number.jpg" -resize 256x256 "library/thumbnails/$number.jpg"
    echo "INSERT INTO photo VALUES('$number', '2024-01-01', 'thumbnails/$number.jpg');" | sqlite3 library/photos.db
  done
}

run_browser() {
  mkdir -p pages profile
  for page in 1 2 3 4 5 6; do
    { echo "<html><script>localStorage.setItem('p$page', 'x'.repeat(5000)); document.cookie='c$page=1';</script><pre>"
      text "$page" 400; echo "</pre></html>"; } >"pages/$page.html"
  done
  for page in 1 2 3 4 5 6; do
    click
    chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$PWD/profile" \
      --virtual-time-budget=3000 --dump-dom "file://$PWD/pages/$page.html" >/dev/null 2>&1
  done
}

# gaps SEED COUNT [LONG% SHORT LONG]: seconds between what a person does. Most follow each other
# closely, with a median of SHORT ms; every sixth or so (LONG%) is one of reading and thinking, with
# a median of LONG ms: two log-normal distributions.
gaps() {
  awk -v seed="$1" -v count="$2" -v share="${3:-16}" -v short="${4:-607}" -v long="${5:-13464}" '
    BEGIN { srand(seed); for (i = 0; i < count; i++) {
      normal = sqrt(-2 * log(1 - rand())) * cos(6.283185 * rand())
      printf "%.2f\n", rand() < share / 100 ? long / 1000 * exp(0.7 * normal) : short / 1000 * exp(0.6 * normal) } }'
}

# desk SECONDS SEED COUNT [LONG% SHORT LONG]: a user writes a document, takes notes, commits now
# and then; messages come meanwhile. It ends after COUNT operations, or so many seconds.
desk() {
  local seconds=$1 seed=$2 count=$3 step=0 gap until
  shift 3
  mkdir -p documents notes chat git logs
  sqlite3 notes/notes.db 'CREATE TABLE note(id INTEGER PRIMARY KEY, text);'
  sqlite3 chat/chat.db 'PRAGMA journal_mode=WAL; CREATE TABLE message(id INTEGER PRIMARY KEY, sender, text);' >/dev/null
  (cd git && git init -q . && git config user.name T && git config user.email t@example.org)
  (
    for arrival in $(gaps $((seed - 4)) 400); do
      sleep "$arrival"
      echo "INSERT INTO message(sender, text) VALUES('friend', hex(zeroblob(120)));" | sqlite3 -cmd ".timeout 5000" chat/chat.db
      echo "$arrival a message" >>logs/chat.log
    done
  ) &
  messages=$!
  trap 'kill "$messages" 2>/dev/null || true' EXIT
  until=$((SECONDS + seconds))
  for gap in $(gaps "$seed" "$count" "$@"); do
    [ "$SECONDS" -lt "$until" ] || break
    click "$gap"
    step=$((step + 1))
    text 5 $((20 + step)) >documents/.thesis.new && mv documents/.thesis.new documents/thesis.txt
    [ $((step % 7)) != 0 ] || echo "INSERT INTO note(text) VALUES(hex(zeroblob(300)));" | sqlite3 notes/notes.db
    [ $((step % 10)) != 0 ] || echo "INSERT INTO message(sender, text) VALUES('me', 'answer $step');" | sqlite3 -cmd ".timeout 5000" chat/chat.db
    [ $((step % 40)) != 0 ] || (cp documents/thesis.txt git/ && cd git && git add -A && git commit -q -m "step $step")
  done
  kill "$messages" 2>/dev/null || true
  wait "$messages" 2>/dev/null || true
}

run_desk() { desk 3600 11 220; }
# The same work by five users, for five minutes each: like the first; quick; reading much; with
# even pauses; with long but rare pauses.
run_desk-u1() { desk 300 21 1000 16 607 13464; }
run_desk-u2() { desk 300 31 1000 8 400 6000; }
run_desk-u3() { desk 300 41 1000 30 800 20000; }
run_desk-u4() { desk 300 51 1000 20 1000 9000; }
run_desk-u5() { desk 300 61 1000 12 500 18000; }
LIB

# needs PROGRAM: the commands that it runs.
needs() {
  case $1 in
    git) echo git ;; sqlite) echo sqlite3 ;; npm) echo npm ;; packages) echo dpkg dpkg-deb ;;
    desk | desk-u?) echo git sqlite3 ;; mail) echo notmuch ;; photos) echo convert exiftool sqlite3 ;; browser) echo chromium ;;
    *) die "there is no program $1; there are ${PROGRAMS[*]}" ;;
  esac
}

for program in "${PROGRAMS[@]}"; do
  wanted=$(needs "$program")
  missing=
  for command in $wanted; do command -v "$command" >/dev/null || missing+=" $command"; done
  if [ -n "$missing" ]; then
    say "$program: skipped, there is no$missing (--install installs it)"
    continue
  fi
  root=$work/$program
  mkdir -p "$root"
  (cd "$root" && "$MOBIFS" trace record --root "$root" --touch-fifo "$work/touch" \
    --out "$out/$program.parquet" -- bash -c ". '$work/lib.sh'; run_$program") \
    >"$work/$program.log" 2>&1 || { cat "$work/$program.log" >&2; die "$program failed"; }
  tail -n 1 "$work/$program.log"
  say "$program: $(stat -c %s "$out/$program.parquet") bytes"
  rm -rf "$root"
done
