#!/usr/bin/env bash
# Guards the cost of a decision by counting instructions, which do not depend on how busy
# the machine is.
#
#   scripts/instructions.sh check     compare with docs/instructions.tsv; exit 1 when a
#                                     scenario costs over 5 % more
#   scripts/instructions.sh update    measure and rewrite docs/instructions.tsv
#
# Each scenario of the example `instructions` runs under callgrind with N and with 2N
# decisions; the difference divided by N is the price of one, and set-up cancels out.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(..) stops the script too
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly n=20000
readonly tolerance=5 # per cent
readonly committed=docs/instructions.tsv

die() {
  echo "instructions: $*" >&2
  exit 1
}

# Total instructions of one run of the example: SCENARIO COUNT.
count() {
  local log total
  log=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null \
    "$example" "$1" "$2" 2>&1 >/dev/null) || die "scenario $1 failed with $2 decisions:
$log"
  total=$(sed -nE 's/^==[0-9]+== Collected *: *([0-9]+).*/\1/p; t
    s/^==[0-9]+== I +refs: *([0-9,]+).*/\1/p' <<<"$log" | tr -d , | head -n 1)
  [[ -n $total ]] || die "no instruction count in callgrind's output for $1:
$log"
  echo "$total"
}

# Lines "scenario<TAB>instructions per decision".
measure() {
  local scenarios scenario once twice
  scenarios=$("$example" --list) || die "the example could not list its scenarios"
  [[ -n $scenarios ]] || die "the example lists no scenario"
  while read -r scenario; do
    once=$(count "$scenario" "$n")
    twice=$(count "$scenario" $((2 * n)))
    awk -v s="$scenario" -v d=$((twice - once)) -v n="$n" \
      'BEGIN { printf "%s\t%.1f\n", s, d / n }'
  done <<<"$scenarios"
}

compare() {
  awk -F '\t' -v tolerance="$tolerance" -v file="$committed" '
    BEGIN { printf "%-32s %10s %10s %8s\n", "scenario", "committed", "now", "change" }
    /^#/ || !NF || $1 == "scenario" { next }
    FNR == NR { was[$1] = $2; next }
    {
      total++
      seen[$1] = 1
      if (!($1 in was)) {
        printf "%-32s %10s %10.1f %8s  MISSING\n", $1, "-", $2, "-"
        missing++
        next
      }
      change = was[$1] > 0 ? 100 * ($2 - was[$1]) / was[$1] : ($2 > 0 ? 100 : 0)
      verdict = ""
      if (change > tolerance) { verdict = "  WORSE"; worse++ }
      else if (change < -tolerance) { verdict = "  better"; better++ }
      printf "%-32s %10.1f %10.1f %+7.1f%%%s\n", $1, was[$1], $2, change, verdict
    }
    END {
      for (s in was) if (!(s in seen)) { printf "%-32s %10.1f %10s %8s  GONE\n", s, was[s], "-", "-"; gone++ }
      print ""
      if (better) printf "%d better by over %d %%: keep the gain with `scripts/instructions.sh update`\n", better, tolerance
      if (missing + gone) {
        printf "instructions: FAILED, %s does not list the same scenarios (%d missing, %d gone): run `scripts/instructions.sh update` and commit the file\n", file, missing, gone
        exit 1
      }
      if (worse) {
        printf "instructions: FAILED, %d of %d scenarios cost over %d %% more than committed\n", worse, total, tolerance
        exit 1
      }
      printf "instructions: ok, %d scenarios within %d %% of %s\n", total, tolerance, file
    }' "$1" -
}

mode=${1-}
[[ $# -eq 1 && ($mode == check || $mode == update) ]] || die "usage: scripts/instructions.sh check|update"
command -v valgrind >/dev/null || die "valgrind is missing: scripts/setup.sh installs it"
[[ $mode == update || -f $committed ]] || die "$committed is missing: run \`scripts/instructions.sh update\` and commit it"

cargo build --release --quiet -p tollgate --features tower --example instructions
target=$(cargo metadata --format-version 1 --no-deps | sed -nE 's/.*"target_directory":"([^"]*)".*/\1/p')
readonly example=$target/release/examples/instructions
[[ -x $example ]] || die "$example was not built"

compiler=$(rustc --version | cut -d ' ' -f 1,2)
measured=$(measure)

if [[ $mode == update ]]; then
  mkdir -p "$(dirname "$committed")"
  {
    echo "# Instructions per decision, $compiler; written by scripts/instructions.sh update."
    printf 'scenario\tinstructions\n'
    echo "$measured"
  } >"$committed"
  cat "$committed"
  echo "instructions: wrote $(wc -l <<<"$measured") scenarios to $committed"
else
  # Another compiler is the one innocent reason for a change.
  before=$(sed -nE '1s/^# Instructions per decision, (.*);.*/\1/p' "$committed")
  [[ -z $before || $before == "$compiler" ]] ||
    echo "note: $committed was measured with $before, this is $compiler"
  compare "$committed" <<<"$measured"
fi
