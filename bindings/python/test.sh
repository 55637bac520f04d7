#!/usr/bin/env bash
# Builds the wheel, installs it into an environment of its own, and runs its tests against the debug programs:
#
#   bindings/python/test.sh            numpy, asyncio, bad input, forks, kills, stubs
#   bindings/python/test.sh torch      torch, Debian's
#   bindings/python/test.sh frameworks torch and JAX, the newest (5 GB from PyPI at the first run)
#   bindings/python/test.sh tensorflow TensorFlow and Keras for the CPU, the newest (1.6 GB from PyPI at the first run)
#   bindings/python/test.sh mxnet      MXNet 1.9.1
#   bindings/python/test.sh mxnet2     MXNet 2.0.0b1
#   bindings/python/test.sh wheel      the wheel with the programs in it, installed into an empty environment
#
# Further words go to pytest. Environments stay in target/python. PYTHON says which interpreter makes them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
which=core
case ${1:-} in torch | frameworks | tensorflow | mxnet | mxnet2 | wheel) which=$1; shift ;; esac
deploy/bootstrap.sh "$([ "$which" = torch ] && echo torch || echo python)"
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$built/python/$which
needs=('numpy>=1.22' 'pytest>=8')
case $which in
    core) needs+=("mypy>=1.10" "ml_dtypes>=0.4" "safetensors>=0.4") tests=(--ignore="$PWD/bindings/python/tests/frameworks" "$PWD/bindings/python/tests") ;;
    tensorflow) needs+=("tensorflow-cpu>=2.16" "scikit-learn>=1") tests=("$PWD/bindings/python/tests_tensorflow") ;;
    # With the last numpy that has what these releases use of it.
    mxnet) needs+=("numpy==1.23.5" "mxnet==1.9.1") tests=("$PWD/bindings/python/tests_mxnet") ;;
    wheel) needs=('pytest>=8' 'twine>=6') tests=("$PWD/bindings/python/tests_wheel") ;;
    mxnet2) needs+=("numpy==1.23.5" "mxnet==2.0.0b1") tests=("$PWD/bindings/python/tests_mxnet") ;;
    torch) seen=--system-site-packages tests=(--ignore="$PWD/bindings/python/tests/frameworks/test_jax.py" "$PWD/bindings/python/tests/frameworks") ;;
    frameworks) needs+=("torch>=2.2" "jax>=0.4.30" "optax>=0.2" "lightning>=2.2" "accelerate>=1") tests=("$PWD/bindings/python/tests/frameworks") ;;
esac

# An environment that was made for another list, or only half, is made anew.
if [ "$(cat "$venv/needs" 2>/dev/null)" != "${needs[*]}" ]; then
    rm -rf "$venv"
    # Debian's own, which has what environments need, rather than whatever is first in the path.
    "${PYTHON:-/usr/bin/python3}" -m venv ${seen:+"$seen"} "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "${needs[@]}"
    printf '%s\n' "${needs[*]}" > "$venv/needs"
fi

# The programs that the tests start, and the extension module. All of the workspace, and an example, as the suites' own build has
# tests: another choice would be other features, and everything would be compiled again.
cargo build --quiet --locked --workspace --lib --bins --example echo
wheels=$venv/wheels
rm -rf "$wheels"
if [ "$which" = wheel ]; then
    GRADWIRE_WHEEL=$(bindings/python/wheel.sh "$built/debug" "$wheels" | tail -n 1)
    export GRADWIRE_WHEEL
else
    bindings/python/wheel.sh --bare "$built/debug" "$wheels" > /dev/null
    "$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheels"/*.whl
    export GRADWIRE_PROGRAMS=$built/debug
fi
# From elsewhere, so that the wheel is imported and not the sources.
root=$PWD
cd "$venv"
exec bin/python -m pytest -q -p no:cacheprovider --rootdir "$root/bindings/python" -c "$root/bindings/python/pyproject.toml" \
    "${tests[@]}" "$@"
