# Counts tests in what `cargo test -- --show-output` or one of our suites printed, and prints
# "PASSED FAILED SKIPPED". To libtest, a test that returns because it cannot run here has passed;
# such tests say so in lines that test/skip makes:
#
#   SKIPPED test: reason            skipped, not passed
#   SKIPPED IN PART test: reason    passed
#   NO TEST test: reason            a program that another test runs: neither
#
# A suite ends with a line of its own, "N passed, M failed, K skipped", in which everything is
# counted already.

# A test program that dies of a signal has no result; it counts as one test that failed.

# What was seen since the last result is about one test program.
function forget() { split("", skipped_here); split("", none_here); in_failures = 0 }

BEGIN { forget() }
/^failures:$/ { in_failures = 1 }
/^successes:$/ { in_failures = 0 }
# One that failed is not passed anyway.
!in_failures && /^SKIPPED / && !/^SKIPPED IN PART / { skipped_here[$2] = 1 }
!in_failures && /^NO TEST / { none_here[$3] = 1 }
/^test result:/ {
  passed += $4; failed += $6; skipped += $8
  for (test in skipped_here) { passed--; skipped++; delete none_here[test] }
  for (test in none_here) passed--
  forget()
}
/^ *process didn't exit successfully: .*\(signal: / { failed++; forget() }
/^[0-9]+ passed, [0-9]+ failed/ { passed += $1; failed += $3; skipped += $5; forget() }
END { printf "%d %d %d\n", passed, failed, skipped }
