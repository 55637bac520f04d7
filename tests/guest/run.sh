#!/usr/bin/env bash
# Tests that need an RDMA device, in a guest that has one (software RDMA, by the kernel's rdma_rxe): builds them with
# the feature `verbs`, boots, and ends with their exit code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deploy/bootstrap.sh guest
built=${CARGO_TARGET_DIR:-target}/guest
# What needs no device runs here.
cargo test --locked --quiet --target-dir "$built" -p gradwire-fabric --features verbs --lib verbs::
tests/guest/base.sh "$built/base"
tests/guest/build.sh daemons drivers verbs_faults rdma_train > /dev/null
bin=$built/bin
# One device, then two with a wire between them, then daemons.
tests/guest/boot.sh -t 300 "$built/base" tests/guest/fabric.sh "$bin/drivers" "$bin/verbs_faults"
tests/guest/boot.sh -t 300 "$built/base" tests/guest/netem.sh "$bin/verbs_faults"
exec tests/guest/boot.sh -t 300 -m 3000 "$built/base" tests/guest/train.sh "$bin"/gradwire{-scheduler,-server,-worker} \
    "$bin/rdma_train" "$(command -v setpriv)" examples/digits/digits.csv
