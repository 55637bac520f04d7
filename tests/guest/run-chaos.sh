#!/usr/bin/env bash
# gradwire chaos over RDMA devices, in guests that have them: on one device, and on two with a wire between them that loses
# packets. Ends with the first failure's exit code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deploy/bootstrap.sh guest
folder=$(tests/guest/build.sh)
tests/guest/base.sh "$folder/base"
programs=("$folder"/bin/gradwire{,-scheduler,-server,-worker} examples/digits/digits.csv)
data="DATA=$PWD/examples/digits/digits.csv"
tests/guest/boot.sh -m 3000 -t 1500 -e "$data" "$folder/base" tests/guest/chaos.sh "${programs[@]}"
tests/guest/boot.sh -m 3000 -t 1500 -e "$data" "$folder/base" tests/guest/chaos-loss.sh "${programs[@]}"
echo "2 passed, 0 failed"
