#!/usr/bin/env bash
# The demo over an RDMA device: builds everything, boots a guest that has one (software RDMA under
# emulation: right, and slow), trains there. demo.sh SERVERS WORKERS PLOT [TRAIN...]: the loss curve goes to PLOT.
set -euo pipefail
servers=$1 workers=$2 plot=$3
shift 3
case " $* " in *" --data"[\ =]* | *" --save"[\ =]* | *" --test-data"[\ =]* | *" --resume"[\ =]* | *" --plot"[\ =]*)
    echo "demo: files of your own do not reach the guest: without TRANSPORT=verbs the demo takes $*" >&2
    exit 2
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deploy/bootstrap.sh guest
echo "demo: building" >&2
folder=$(tests/guest/build.sh)
tests/guest/base.sh "$folder/base"
data=examples/digits/digits.csv
echo "demo: booting a guest with a software RDMA device; some minutes, as its processor is emulated" >&2
tests/guest/boot.sh -m 3000 -t 1500 -e "SERVERS=$servers WORKERS=$workers DATA=$PWD/$data TRAIN='$*'" \
    "$folder/base" tests/guest/in-demo.sh "$folder"/bin/gradwire{,-scheduler,-server,-worker} "$data" |
    sed -u "/^== loss.svg$/,/^== end$/{/^==/d;w $plot
        d}"
