# Run by SQLite's own `testfixture` (scripts/sqlite_tcl.py):
#
#   sqlite_tcl.tcl list DIRECTORY SUITE          prints the test files of a suite, one a line
#   sqlite_tcl.tcl run FILE SUITE [EXTENSION]    runs one of them; with an extension, through the
#                                                VFS that its entry point makes the default one

lassign $argv action place suite mobifs_extension

# The tests configure SQLite anew, and its initialization makes its own VFS the default one again.
proc mobifs_make_default {} {
  if {$::mobifs_extension eq ""} return
  sqlite3 mobifs_loader :memory:
  mobifs_loader enable_load_extension 1
  mobifs_loader eval {SELECT load_extension($::mobifs_extension, 'sqlite3_mobifs_default_init')}
  mobifs_loader close
}

# A suite in which the VFS is not the default one would compare SQLite with itself.
proc mobifs_check_default {} {
  if {$::mobifs_extension eq ""} return
  sqlite3 mobifs_probe mobifs-probe.db
  set status [mobifs_probe eval {PRAGMA mobifs_status}]
  mobifs_probe close
  file delete -force mobifs-probe.db mobifs-probe.db-mobifs
  if {$status eq ""} {
    puts stderr "the VFS mobifs is not the default one"
    exit 3
  }
}

if {$action eq "list"} {
  set argv0 [file join $place permutations]
  set argv [list]
  source [file join $place permutations.test]
  array set options $testspec($suite)
  foreach file [lsort $options(-files)] {
    puts "file [file normalize [file join $place $file]]"
  }
  exit 0
}

mobifs_make_default
mobifs_check_default
rename sqlite3_initialize mobifs_initialize
proc sqlite3_initialize {} {
  set code [mobifs_initialize]
  if {$code eq "SQLITE_OK"} mobifs_make_default
  return $code
}

# Many tests copy a database that is in use, or look into its file. What is committed is brought
# there first: with its directory it may be copied then (docs/SQLITE.md).
proc mobifs_bring_to_place {} {
  if {$::mobifs_extension eq ""} return
  foreach connection [info commands ::db*] {
    if {![regexp {^::db[0-9]*$} $connection]} continue
    catch { $connection eval {PRAGMA mobifs_checkpoint} }
  }
}
rename file mobifs_file
proc file {action args} {
  if {$action eq "copy"} mobifs_bring_to_place
  uplevel 1 [list mobifs_file $action {*}$args]
}
foreach command {hexio_read hexio_write} {
  rename $command mobifs_$command
  proc $command {args} "mobifs_bring_to_place; uplevel 1 \[list mobifs_$command {*}\$args\]"
}

# Tests with several clients run them in one process only, as SQLite has it under valgrind and for its VFS
# `unix-excl`. In processes of their own, which know no MobiFS, they would find no lock: the suite moves the bytes
# that SQLite locks, so a client would write beside the engine, which no program outside the suite can.
set G(valgrind) 1

set G(isquick) 1
set G(perm:name) $suite
foreach option {prefix dbconfig presql} { set G(perm:$option) "" }
set argv0 $place
set argv [list]
source $place
