# What the guest of scripts/native-guest.sh does, as root in the host's files (read-only), with /tmp/out from
# the host and the ext4 to be steered in /dev/vda.
set -u
OUT=/tmp/out M=/tmp/m
PATH=$OUT/bin:$PATH
STEPS=$(cat $OUT/steps)
export RUST_BACKTRACE=0

fail() {
  echo "native-guest: $*"
  dmesg | tail -20
  exit 1
}
flushes() { awk '{ print $16 }' /sys/block/vda/stat; }
# is_marked PATH: whether the file or directory has the flag +j.
is_marked() { lsattr -d "$1" | awk '{ exit $1 !~ /j/ }'; }
# syncs FILE COUNT: writes and calls fsync so often under mobifs run; prints how often the device was flushed.
syncs() {
  local before
  before=$(flushes)
  mobifs run -- python3 $OUT/native_order.py sync "$1" "$2" >/dev/null || fail "fsync of $1 fails"
  echo $(($(flushes) - before))
}
skipped() { [ "$(syncs "$1" 50)" -lt 25 ] || fail "fsync of $1 waits"; }
real() { [ "$(syncs "$1" 20)" -ge 20 ] || fail "fsync of $1 is skipped"; }
no_flags() { [ -z "$(lsattr -R . 2>/dev/null | awk '$1 ~ /j/')" ] || fail "flags stay $1"; }
# The daemon's lock goes a moment after it.
steer_and_kill() { steer && pkill -KILL -f 'steer --foreground' && sleep 1; }
steer() { mobifs steer --config $OUT/steer.toml --only app,more $M || fail "it is not steered"; }

mkdir $M
mount -t ext4 -o nodelalloc /dev/vda $M || fail "not mounted"
cd $M || exit 1
mkdir app plain media more
python3 $OUT/native_order.py begin app
python3 $OUT/native_order.py begin plain
head -c 262144 /dev/zero >media/records
echo words >more/old
ln more/old media/linked
touch media/late
mkdir -p more/a/b
sync

mobifs steer --check --only app $M || fail "it could not be steered"
steer
mobifs status $M | grep -q "^only     $M/app, $M/more;" || fail "the status does not say what is steered"
for path in app app/slot0 app/made more/a/b more/old media/linked; do
  is_marked $path || fail "$path is not marked"
done
for path in . media plain plain/slot0 media/records; do
  ! is_marked $path || fail "$path is marked"
done
touch more/a/b/new
is_marked more/a/b/new || fail "a new file is not marked"
mv media/late more/late
skipped more/a/b/new
skipped media/linked
real media/records
real more/late
before=$(flushes)
for _ in 1 2 3; do
  date >more/old
  mobifs run -- sync -f more/old
done
[ $(($(flushes) - before)) -ge 3 ] || fail "syncfs is skipped"

# A daemon that is killed leaves the flags, and the next one takes them on.
pkill -KILL -f 'steer --foreground' || fail "there is no daemon"
is_marked app || fail "the flags have gone with the daemon"
steer
sync
echo "native-guest: steered"
touch $OUT/steered
while [ ! -e $OUT/go ]; do sleep 0.2; done

mobifs run --unsafe -- python3 $OUT/native_order.py write plain - "$STEPS" 2>/dev/null &
before=$(flushes)
mobifs run -- python3 $OUT/native_order.py write app media/records "$STEPS" || fail "the writer has ended"
echo "native-guest: $(($(flushes) - before)) flushes meanwhile"
wait $!
last=$(ls -t app/made | head -1)
is_marked "app/made/$last" || fail "a file that the writer made is not marked"

mobifs steer --stop $M || fail "it cannot be ended"
no_flags "after --stop"
grep -q ' /tmp/m ext4 .*nodelalloc' /proc/mounts || fail "other options are in force"
steer_and_kill
mobifs steer --stop $M || fail "what a killed daemon leaves cannot be restored"
no_flags "after a killed daemon"

# Mounted anew since then: nothing is steered, the flags are still there, and the product says how to lose them.
steer_and_kill
cd / && umount $M && mount -t ext4 -o nodelalloc /dev/vda $M && cd $M || fail "not mounted anew"
mobifs status $M 2>/tmp/said && fail "it counts as steered after a new mount"
mobifs steer --stop $M 2>/tmp/said || fail "what a killed daemon leaves cannot be removed after a new mount"
for path in app more; do
  is_marked $path || fail "the flag of $path has gone with the mount"
  grep -q "^mobifs: files in $M/$path may still have the flag .+j.: steer it once more" /tmp/said ||
    fail "it does not say what to do with $path: $(cat /tmp/said)"
done
mobifs steer --stop $M 2>/dev/null && fail "it can be ended twice"
steer
mobifs steer --stop $M || fail "it cannot be ended after a new mount"
no_flags "after a new mount and another --only"

# The mount that was named is gone, and another one shows the directories.
mkdir /tmp/bound && mount --bind $M /tmp/bound
steer_and_kill
cd / && umount $M || fail "not unmounted"
mobifs steer --stop /tmp/bound || fail "it cannot be ended at a bind mount"
cd /tmp/bound && no_flags "at a bind mount"
mount --bind /tmp/bound $M && cd $M && umount /tmp/bound || fail "not bound back"
# With delayed allocation the flag has no effect: the promise is withdrawn.
steer
skipped more/a/b/new
mount -o remount,delalloc $M
sleep 3
mobifs status $M | grep -q delalloc || fail "the status does not say why nothing is promised"
mobifs run -- true 2>&1 | grep -q "calls for durability wait" || fail "mobifs run does not say that nothing is promised"
mobifs steer --stop $M || fail "it cannot be ended"
dmesg | grep -i 'ext4.*error' && fail "the filesystem has met an error"
echo "native-guest: all of the guest"
