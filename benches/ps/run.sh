#!/bin/bash
# Compiles the load program and runs it as one scheduler, one server and one worker of this machine.
#   run.sh INCLUDE LIBRARY WORK MEMORY SECONDS
# INCLUDE: a directory with ps/ps.h; LIBRARY: what to link, with its directory first in LD_LIBRARY_PATH. Further variables, such as
# GRADWIRE_TRANSPORT__SHM=off, go to all three processes.
set -euo pipefail
include=$1 library=$2
shift 2
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -rf "$scratch"' EXIT
c++ -std=c++11 -O2 -pthread -I "$include" "$(dirname "$0")/load.cc" "$library" -o "$scratch/load"
export LD_LIBRARY_PATH=$(dirname "$library") DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_URI=127.0.0.1
DMLC_PS_ROOT_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export DMLC_PS_ROOT_PORT
for role in scheduler server; do
    DMLC_ROLE=$role "$scratch/load" "$@" 2> "$scratch/$role.log" > /dev/null &
done
DMLC_ROLE=worker "$scratch/load" "$@" 2> "$scratch/worker.log" || { cat "$scratch"/*.log >&2; exit 1; }
wait
