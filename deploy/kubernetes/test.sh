#!/usr/bin/env bash
# Checks the manifests: against Kubernetes' own schemas (kubernetes-validate, from PyPI, which stays in target/python/kubernetes), and
# against our settings, ports, paths and deadlines. No cluster runs them here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deploy/bootstrap.sh python
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$built/python/kubernetes
needs=('kubernetes-validate>=1.30,<2' 'PyYAML>=6')
if [ "$(cat "$venv/needs" 2>/dev/null)" != "${needs[*]}" ]; then
    rm -rf "$venv"
    "${PYTHON:-/usr/bin/python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "${needs[@]}"
    printf '%s\n' "${needs[*]}" > "$venv/needs"
fi
# All of the workspace, and an example, as the suites' own build has tests: another choice would be other features, and all anew.
cargo build --quiet --locked --workspace --bin gradwire --example echo
exec "$venv/bin/python" deploy/kubernetes/check.py "$built/debug/gradwire" "$@"
