#!/usr/bin/env bash
# gradwire chaos over RDMA devices, in guests that have them: on one device, with copies and from checkpoints, on two with a
# wire between them that loses packets, and as a soak. Ends with the first failure's exit code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deploy/bootstrap.sh guest
folder=$(tests/guest/build.sh)
tests/guest/base.sh "$folder/base"
programs=("$folder"/bin/gradwire{,-scheduler,-server,-worker} examples/digits/digits.csv)
data="DATA=$PWD/examples/digits/digits.csv"
boot() {
    local variables=$1 script=$2
    tests/guest/boot.sh -m 3000 -t 1500 -e "$data $variables" "$folder/base" "tests/guest/$script" "${programs[@]}"
}
boot REPLICAS=1 chaos.sh
boot REPLICAS=0 chaos.sh
boot "" chaos-loss.sh
boot "" chaos-soak.sh
echo "4 passed, 0 failed"
