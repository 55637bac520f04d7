#!/usr/bin/env bash
# Tests checkpoints in an object store, against moto's server of S3 from PyPI, which stays in target/python/moto.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
deploy/bootstrap.sh python
venv=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python/moto
needs='moto[server]>=5,<6'
if [ "$(cat "$venv/needs" 2>/dev/null)" != "$needs" ]; then
    rm -rf "$venv"
    "${PYTHON:-/usr/bin/python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$needs"
    printf '%s\n' "$needs" > "$venv/needs"
fi
export GRADWIRE_MOTO=$venv/bin/moto_server
exec cargo test --locked -p gradwire-checkpoint --features object-store -- --ignored bucket "$@"
