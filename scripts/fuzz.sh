#!/usr/bin/env bash
# Runs the fuzzers one after another: scripts/fuzz.sh [SECONDS] [TARGET...]. `make fuzz` calls it.
#
# New inputs go to target/fuzz-corpus; `scripts/fuzz.sh minimize` merges what covers new code from there into
# fuzz/corpus, which is committed and replayed by `make test`. An input that breaks a property is left in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/tools.sh

all=(requests request_body response proxy_protocol client_address policy_file redis_reply)
found=target/fuzz-corpus

# The code has no `unsafe` of its own: without a sanitizer ten times as many inputs are tried.
fuzz() { cargo +nightly fuzz "$1" -s none "${@:2}"; }

options() {
  case $1 in
    requests | request_body | response) echo "-dict=fuzz/http1.dict -max_len=4096" ;;
    proxy_protocol | client_address) echo "-dict=fuzz/address.dict -max_len=1024" ;;
    policy_file) echo "-dict=fuzz/policy.dict -max_len=2048" ;;
    redis_reply) echo "-dict=fuzz/resp.dict -max_len=1024" ;;
  esac
}

cargo +nightly --version >/dev/null 2>&1 || { say "fuzzing needs the nightly toolchain: rustup toolchain install nightly" >&2; exit 1; }
cargo fuzz --version >/dev/null 2>&1 || quietly cargo install --debug --locked cargo-fuzz --version 0.13.2

if [[ ${1:-} == minimize ]]; then
  for target in "${@:2}"; do
    mkdir -p "$found/$target"
    # What covers new code is kept, not what runs the same code more often: that would be ten times as much. What is named by
    # hand stays. No fuzzer may run on the same folder: it deletes inputs.
    merged=$(mktemp -d)
    cp fuzz/corpus/"$target"/seed-* "$merged"
    fuzz run "$target" "$merged" "fuzz/corpus/$target" "$found/$target" -- -merge=1 -use_counters=0 -max_len=65536 2>&1 | tail -1
    rm -rf "fuzz/corpus/$target"
    mv "$merged" "fuzz/corpus/$target"
    chmod 755 "fuzz/corpus/$target"
  done
  du -sh --apparent-size fuzz/corpus
  exit
fi

seconds=${1:-60}
shift || true
targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || targets=("${all[@]}")
for target in "${targets[@]}"; do
  mkdir -p "$found/$target"
  say "fuzzing $target for $seconds s"
  # Memory is bounded: 512 MB in all, 64 MB at once. No input may take longer than 10 s.
  # shellcheck disable=SC2046
  fuzz run "$target" "$found/$target" "fuzz/corpus/$target" -- $(options "$target") -max_total_time="$seconds" \
    -rss_limit_mb=512 -malloc_limit_mb=64 -timeout=10 -print_final_stats=1 2>&1 |
    tee "$found/$target.log" | grep -E '^(stat::|==|thread|SUMMARY|#[0-9]+.DONE|.*panicked)|assert|left:|right:|artifact' || true
  [[ ${PIPESTATUS[0]} -eq 0 ]] || { say "$target: a property does not hold; the input is in fuzz/artifacts/$target" >&2; exit 1; }
done
