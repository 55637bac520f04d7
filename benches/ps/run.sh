#!/bin/bash
# Runs the compiled load program as one scheduler, one server and one worker of this machine.
#   run.sh PROGRAM LIBRARY WORK MEMORY SECONDS
# LIBRARY: what the program is linked with; its directory is first in LD_LIBRARY_PATH. Further variables, such as
# GRADWIRE_TRANSPORT__SHM=off, go to all three processes. To compile it, with a directory INCLUDE that has ps/ps.h:
#   c++ -std=c++11 -O3 -pthread -I INCLUDE load.cc LIBRARY -o PROGRAM
set -euo pipefail
program=$(realpath "$1") library=$2
shift 2
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -rf "$scratch"' EXIT
export LD_LIBRARY_PATH=$(dirname "$library") DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_URI=127.0.0.1
DMLC_PS_ROOT_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export DMLC_PS_ROOT_PORT
for role in scheduler server; do
    DMLC_ROLE=$role "$program" "$@" 2> "$scratch/$role.log" > /dev/null &
done
DMLC_ROLE=worker "$program" "$@" 2> "$scratch/worker.log" || { cat "$scratch"/*.log >&2; exit 1; }
wait
