#!/usr/bin/env bash
# Tests that need an RDMA device (elsewhere they are ignored), in a guest that has one (software RDMA, by the kernel's
# rdma_rxe): builds, boots, and ends with their exit code.
#   run.sh         the driver's promises and faults, one test of each invariant of the daemons, the doctor
#   run.sh long    the other tests of the daemons, and all of them again
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deploy/bootstrap.sh guest
# The trainings of `long` need optimised programs.
[ "${1:-}" = long ] || export GUEST_PROFILE=dev
folder=$(tests/guest/build.sh drivers machine verbs_faults verbs_shared process)
bin=$folder/bin
tests/guest/base.sh "$folder/base"
daemons=("$bin"/gradwire-{scheduler,server,worker} "$bin/process" "$(command -v setpriv)" examples/digits/digits.csv)
case ${1:-} in
long)
    tests/guest/boot.sh -m 3000 -t 400 "$folder/base" tests/guest/netem-train.sh "${daemons[@]}"
    tests/guest/boot.sh -m 3000 -t 1200 "$folder/base" tests/guest/train.sh "${daemons[@]}"
    tests/guest/boot.sh -m 3000 -t 400 "$folder/base" tests/guest/calls.sh "${daemons[@]}"
    exit
    ;;
esac
# What needs no device.
"$bin/fabric" verbs::
# One device, then two with a wire between them. With memory enough that a region of 1 GiB, were it pinned as a whole,
# fails its test and not the machine.
tests/guest/boot.sh -m 1536 -t 400 "$folder/base" tests/guest/fabric.sh \
    "$bin"/{drivers,verbs_faults,verbs_shared,machine,copy_between_processes}
tests/guest/boot.sh -m 1536 -t 300 "$folder/base" tests/guest/netem.sh "$bin/verbs_faults"
# Daemons, and the doctor.
tests/guest/boot.sh -m 3000 -t 500 "$folder/base" tests/guest/daemons.sh "${daemons[@]}"
tests/guest/boot.sh -m 2000 -t 200 "$folder/base" tests/guest/doctor.sh "$bin/gradwire"
