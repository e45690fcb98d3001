# shellcheck shell=bash
# A run of tests that failed, once more. Expects `say`, `make_tests` and an array `flaky`.

LEDGER=tests/flaky.md

# judge TARGET REPORT STATUS: of a run of tests that is over. Many tests run real processes against
# deadlines, and a build machine is shared: up to three that fail are run once more with nothing beside
# them, and a run that pytest itself broke off (INTERNALERROR) is begun once more. What fails again fails
# the build, and so does what passes then but is in the ledger; what is not there is named at the end.
judge() {
  local target=$1 report=$2 failed again='' one known=0
  [ "$3" -ne 0 ] || return 0
  mapfile -t failed < <(sed -nE 's/^(FAILED|ERROR) ([^ ]+).*/\2/p' "$report")
  if grep -q '^[.sFE]*INTERNALERROR>' "$report"; then
    failed=("$target, which broke off")
  elif [ ${#failed[@]} -ge 1 ] && [ ${#failed[@]} -le 3 ]; then
    again="-n 0 --last-failed --last-failed-no-failures none --junitxml=.pytest_cache/$target-again.xml"
  else
    return 1
  fi
  say "once more: ${failed[*]}"
  make_tests "$target" "$again" | tee "$report.again" || return 1
  for one in "${failed[@]}"; do
    if grep -qF -- "| \`$one\` |" "$LEDGER"; then
      echo "$one passed only when run again, for the second time: see $LEDGER"
      known=1
    else
      flaky+=("$one")
    fi
  done
  return "$known"
}
