#!/usr/bin/env bash
# Installs what a fresh Debian 12 machine lacks for one purpose:
#
#   deploy/bootstrap.sh demo|test|python|torch|guest|launchers|package|aarch64|check|fix|bench|book|fuzz
#
# With nothing lacking it changes nothing and takes a fraction of a second. System packages come through apt,
# as root or with password-less sudo; without that right it prints the exact command and ends with code 1.
# A Rust toolchain is never downloaded: it says what to do instead.
set -euo pipefail

purpose=${1:-}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=${GRADWIRE_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gradwire/tools}
# Where rustup installs, and where system tools lie: not in every user's path.
PATH=$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:/usr/sbin:/sbin

say() { printf 'bootstrap: %s\n' "$*" >&2; }

fail() {
    say "$1"
    say "run: $2"
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# Can programs in this language be compiled and linked? A compiler without its C library's headers cannot.
compiles() {
    local compiler=$1 language=$2
    has "$compiler" || return 1
    printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' |
        "$compiler" -x "$language" - -o /dev/null 2>/dev/null
}

packages=()

want_program() { has "$1" || packages+=("$2"); }

want_file() { [ -e "$1" ] || packages+=("$2"); }

want_c() { compiles cc c || packages+=(gcc libc6-dev); }

want_cxx() { compiles c++ c++ || packages+=(g++); }

# The header that the committed declarations of the verbs library are compared with. Nothing else needs it.
want_verbs_header() { want_file /usr/include/infiniband/verbs.h libibverbs-dev; }

# To build and test the Python package: what makes environments is a package of its own on Debian.
want_python() {
    want_program python3 python3
    want_program objdump binutils
    /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
}

# Debian's torch for Debian's Python: for the CPU, and 150 MB, where PyPI's comes with CUDA and is 5 GB. It multiplies with
# the BLAS that is there, and the one that it takes by itself is slow.
want_torch() {
    want_python
    /usr/bin/python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null ||
        packages+=(python3-torch libopenblas0-pthread)
}

# To boot a machine with an RDMA device as well.
want_guest() {
    want_program qemu-system-x86_64 qemu-system-x86
    want_program busybox busybox-static
    want_program cpio cpio
    want_program depmod kmod
    want_program zstd zstd
    want_program ip iproute2
    want_program rdma iproute2
    want_program ibv_devinfo ibverbs-utils
    want_program ib_write_bw perftest
    want_file /etc/libibverbs.d/rxe.driver ibverbs-providers
}

# A service manager that boots a machine of its own, and a cluster's scheduler: the suites systemd and slurm. Services of theirs are
# started by nobody here; packages may do so.
want_managers() {
    want_program systemd-analyze systemd
    want_program systemd-nspawn systemd-container
    want_program slurmctld slurmctld
    want_program slurmd slurmd
    want_program srun slurm-client
    want_program munged munge
    want_program hostname hostname
}

# What deploy/package/build.sh and bindings/python/wheel.sh run, what judges their packages and reads their pages, and what makes a
# Debian to install them in.
want_package() {
    want_python
    want_program lintian lintian
    want_program rpm rpm
    want_program rpmlint rpmlint
    want_program file file
    want_program git git
    want_program strip binutils
    want_program dpkg-shlibdeps dpkg-dev
    want_program python3 python3
    want_program man man-db
    want_program mmdebstrap mmdebstrap
}

# To compile for 64-bit ARM, and to run that here.
want_aarch64() {
    want_program aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    want_file /usr/aarch64-linux-gnu/lib/libc.a libc6-dev-arm64-cross
    want_program qemu-aarch64-static qemu-user-static
}

# What starts programs on other hosts: the slow suite launchers runs under all of them.
want_launchers() {
    want_program ssh openssh-client
    want_program sshd openssh-server
    want_program rsync rsync
    want_program mpirun.openmpi openmpi-bin
    want_program mpirun.mpich mpich
}

install_packages() {
    [ ${#packages[@]} -gt 0 ] || return 0
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if has sudo && sudo -n true 2>/dev/null; then
            as_root=(sudo -n)
        else
            fail "lacking: ${packages[*]}" \
                "sudo apt-get update && sudo apt-get install -y --no-install-recommends ${packages[*]}"
        fi
    fi
    has apt-get || fail "lacking: ${packages[*]}, and this is no Debian" "your package manager for them"
    say "installing ${packages[*]}"
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends)
    # The package lists of a fresh image are missing or old: fetch them only if installing fails without.
    "${as_root[@]}" "${install[@]}" "${packages[@]}" >/dev/null 2>&1 || {
        "${as_root[@]}" apt-get update -q >&2
        "${as_root[@]}" "${install[@]}" "${packages[@]}" >&2
    }
}

# The toolchain must be as new as Cargo.toml says; it is the user's choice how it gets here.
want_rust() {
    local oldest have
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    local fix="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default"
    has cargo || fail "no Rust toolchain (Debian's is too old; $oldest or newer is needed)" "$fix"
    have=$(cargo --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$oldest" "$have" | sort -V | head -n 1)" != "$oldest" ]; then
        fail "cargo $have is too old, $oldest or newer is needed" "rustup update stable"
    fi
}

want_component() {
    cargo "$1" --version >/dev/null 2>&1 || fail "cargo $1 is not installed" "rustup component add $2"
}

# A cargo tool, built once into a cache that all clones share: cargo-deny takes minutes, cargo-fuzz seconds.
want_cargo_tool() {
    local name=$1
    shift
    if has "$name" || [ -x "$tools/bin/$name" ]; then return 0; fi
    say "building $name into $tools, once"
    # Compiled quickly rather than for speed: each runs for seconds.
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0 \
        cargo install --quiet --locked "$name" "$@" --root "$tools" >&2 ||
        fail "$name could not be built" "cargo install --locked $name"
}

case $purpose in
    demo | bench | book)
        want_c
        ;;
    test)
        want_c
        want_cxx
        want_program cmake cmake
        want_program make make
        want_program pkg-config pkg-config
        want_program git git
        want_program ip iproute2
        want_program unshare util-linux
        want_program valgrind valgrind
        # Debian starts it as a service; nothing here needs that one.
        want_program promtool prometheus
        want_program chromium chromium
        want_program script bsdutils
        want_verbs_header
        want_python
        ;;
    python)
        want_c
        want_python
        ;;
    torch)
        want_c
        want_torch
        ;;
    guest)
        want_c
        want_guest
        ;;
    launchers)
        want_c
        want_launchers
        ;;
    package)
        want_c
        want_package
        ;;
    aarch64)
        want_c
        want_aarch64
        ;;
    check | fix)
        want_c
        want_program git git
        ;;
    fuzz)
        want_c
        want_cxx
        ;;
    *)
        say "usage: deploy/bootstrap.sh demo|test|python|torch|guest|launchers|package|aarch64|check|fix|bench|book|fuzz"
        exit 2
        ;;
esac
want_rust
install_packages
case $purpose in
    test)
        # Not to keep from the other suites who cannot have it: without it one suite says that it did not run, which
        # is a failure in CI.
        packages=()
        want_guest
        (install_packages) || say "without these, the suite guest (RDMA devices) will not run"
        packages=()
        want_package
        (install_packages) || say "without these, the suite package will not run"
        (want_cargo_tool cargo-deb --no-default-features; want_cargo_tool cargo-generate-rpm) ||
            say "without these, the suite package will not run"
        packages=()
        want_managers
        (install_packages) || say "without these, the suites systemd and slurm will not run"
        ;;
    check | fix)
        want_component fmt rustfmt
        want_component clippy clippy
        [ "$purpose" = fix ] || want_cargo_tool cargo-deny --no-default-features
        ;;
    aarch64)
        [ -d "$(rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-gnu/lib" ] ||
            rustup target add aarch64-unknown-linux-gnu >&2 ||
            fail "no Rust library for 64-bit ARM" "rustup target add aarch64-unknown-linux-gnu"
        ;;
    fuzz)
        want_cargo_tool cargo-fuzz
        ;;
    package)
        want_cargo_tool cargo-deb --no-default-features
        want_cargo_tool cargo-generate-rpm
        ;;
    book)
        want_cargo_tool mdbook --no-default-features
        ;;
esac
