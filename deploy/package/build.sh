#!/usr/bin/env bash
# Makes packages of what is built:
#
#   deploy/package/build.sh BUILT OUT
#
# BUILT is the directory with gradwire, gradwire-scheduler, gradwire-server, gradwire-worker and libgradwire.a (target/release). In
# OUT are then three packages for Debian (gradwire, libgradwire1, libgradwire-dev) and three RPMs (gradwire, gradwire-libs,
# gradwire-devel), gradwire-VERSION-MACHINE-linux.tar.gz, gradwire-VERSION.cdx.json (the parts of the programs, in CycloneDX) and
# SHA256SUMS of all files there, such as a wheel. This script collects the files; cli/Cargo.toml describes the packages, which
# cargo-deb and cargo-generate-rpm write. The same programs give the same bytes: times are SOURCE_DATE_EPOCH, or the commit's.
# With FAST=1 packages are hardly compressed. The script compiles and installs nothing.
set -euo pipefail
export LC_ALL=C
# Where deploy/bootstrap.sh builds cargo's tools.
PATH=$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:${GRADWIRE_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gradwire/tools}/bin

[ $# -eq 2 ] || { echo "usage: deploy/package/build.sh BUILT OUT" >&2; exit 2; }
programs=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
root=$(dirname "$(dirname "$here")")
names=(gradwire gradwire-scheduler gradwire-server gradwire-worker)
version=$("$programs/gradwire" --version | cut -d' ' -f2)
machine=$(uname -m)
maintainer=$(sed -n 's/^maintainer = "\(.*\)"/\1/p' "$root/cli/Cargo.toml")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# cargo-deb and cargo-generate-rpm look for target/release/… there.
stages=$work/release/stage
stage=$stages/gradwire
documents=$stage/usr/share/doc/gradwire

# The programs, their manual pages and completions. Function names stay in the programs, because backtraces need them.
stage_programs() {
    local name
    install -d "$stage/usr/bin" "$stage/usr/share/man/man1" "$stage/usr/share/man/man5"
    for name in "${names[@]}"; do
        strip --strip-debug --remove-section=.comment -o "$stage/usr/bin/$name" "$programs/$name"
        "$programs/$name" --generate man "$work/man"
        "$programs/$name" --generate bash "$stage/usr/share/bash-completion/completions"
        "$programs/$name" --generate zsh "$stage/usr/share/zsh/vendor-completions"
        "$programs/$name" --generate fish "$stage/usr/share/fish/vendor_completions.d"
    done
    chmod 755 "$stage"/usr/bin/*
    cp "$work"/man/*.1 "$stage/usr/share/man/man1"
    cp "$work"/man/*.5 "$stage/usr/share/man/man5"
    gzip -9n "$stage"/usr/share/man/man?/*
}

# Debian's own list of changes names this version, and the file that has the changes.
debian_changelog() {
    printf 'gradwire (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz of the package gradwire.\n\n -- %s  %s\n' \
        "$version" "$maintainer" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n
}

stage_units_and_settings() {
    install -d "$stage/usr/lib/systemd/system" "$stage/etc/gradwire"
    install -m 644 "$root"/deploy/systemd/*.{service,target} "$stage/usr/lib/systemd/system"
    install -D -m 644 "$root/deploy/systemd/gradwire.sysusers" "$stage/usr/lib/sysusers.d/gradwire.conf"
    install -D -m 644 "$root/deploy/systemd/gradwire.tmpfiles" "$stage/usr/lib/tmpfiles.d/gradwire.conf"
    install -m 644 "$root"/deploy/config/*.toml "$stage/etc/gradwire"
}

# Pages name files as they lie in the sources: they lie so here.
stage_documents() {
    local deploy=$documents/deploy
    install -D -m 644 -t "$documents" "$root/README.md"
    install -D -m 644 -t "$documents/docs" "$root"/docs/*.md
    install -D -m 644 -t "$documents/docs/figures" "$root"/docs/figures/*.{svg,png}
    install -m 644 "$here/debian/copyright" "$documents/copyright"
    install -D -m 644 -t "$deploy" "$root/deploy/gradwire.toml"
    install -D -m 644 -t "$deploy/config" "$root"/deploy/config/*.toml
    install -D -m 644 -t "$deploy/systemd" "$root"/deploy/systemd/*
    install -D -m 644 -t "$deploy/prometheus" "$root"/deploy/prometheus/*.{yml,json}
    install -D -m 644 -t "$deploy/grafana" "$root"/deploy/grafana/{gradwire.json,dashboard.py}
    install -D -m 644 -t "$deploy/slurm" "$root/deploy/slurm/gradwire.sbatch"
    install -D -m 644 -t "$deploy/kubernetes" "$root"/deploy/kubernetes/*.yaml
    install -D -m 644 -t "$deploy/container" "$root"/deploy/container/{Dockerfile,gradwire.def}
    install -D -m 644 -t "$documents/examples/digits" "$root"/examples/digits/{digits.csv,train.py,README.md}
    gzip -9nc "$root/CHANGELOG.md" > "$documents/CHANGELOG.md.gz"
    debian_changelog > "$documents/changelog.gz"
    "$here/sbom.py" "$root" > "$work/sbom.json"
    install -m 644 "$work/sbom.json" "$documents/gradwire.cdx.json"
}

# What `make install-c` installs below /usr, divided: `library NAME LIBDIR` is the package of programs that are linked with the shared
# library, `development NAME LIBDIR` that of people who write them.
install_c() {
    [ -e "$work/c-$1/usr" ] || LIBDIR=$1 DESTDIR=$work/c-$1 "$root/bindings/c/install.sh" "$programs/libgradwire.a" /usr "$version"
}

library() {
    install_c "$2"
    install -d "$stages/$1/usr/$2"
    strip --strip-debug --remove-section=.comment -o "$stages/$1/usr/$2/libgradwire.so.1" "$work/c-$2/usr/$2/libgradwire.so.1"
}

development() {
    install_c "$2"
    install -d "$stages/$1/usr"
    cp -a "$work/c-$2/usr/." "$stages/$1/usr/"
    rm "$stages/$1/usr/$2/libgradwire.so.1"
    strip --strip-debug --enable-deterministic-archives "$stages/$1/usr/$2/libgradwire.a"
}

# What Debian demands of each package, besides its files.
debian_documents() {
    local name to
    for name in gradwire libgradwire1 libgradwire-dev; do
        to=$stages/$name/usr/share
        install -D -m 644 "$here/debian/copyright" "$to/doc/$name/copyright"
        debian_changelog > "$to/doc/$name/changelog.gz"
        [ ! -e "$here/debian/$name.lintian-overrides" ] ||
            install -D -m 644 "$here/debian/$name.lintian-overrides" "$to/lintian/overrides/$name"
    done
}

make_debs() {
    local libraries variant
    libraries=lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH)
    library libgradwire1 "$libraries"
    development libgradwire-dev "$libraries"
    debian_documents
    for variant in programs library development; do
        CARGO_TARGET_DIR=$work cargo deb --quiet --no-build --no-strip --locked --manifest-path "$root/cli/Cargo.toml" --variant "$variant" \
            ${FAST:+--fast} --output "$out/"
    done
    rm -rf "$stage/usr/share/lintian"
}

# It finds what the programs are linked with by the command `file`, as rpmbuild does.
make_rpms() {
    local variant
    library gradwire-libs lib64
    development gradwire-devel lib64
    # Its format has no links from this tool: a linker script does the same.
    rm "$stages/gradwire-devel/usr/lib64/libgradwire.so"
    printf 'INPUT(libgradwire.so.1)\n' > "$stages/gradwire-devel/usr/lib64/libgradwire.so"
    for variant in programs library development; do
        (cd "$root" && CARGO_TARGET_DIR=$work cargo generate-rpm --package cli --variant "$variant" --output "$out/" \
            ${FAST:+--payload-compress none})
    done
}

# /usr without its name, and the settings: the programs run from any directory.
make_tarball() {
    local name=gradwire-$version-$machine-linux
    cp -a "$stage/usr" "$work/$name"
    cp -a "$stage/etc" "$work/$name"
    install -m 644 "$root"/LICENSE-{APACHE,MIT} "$work/$name"
    chmod -R u=rwX,go=rX "$work/$name"
    tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$name" |
        gzip -n ${FAST:+-1} > "$out/$name.tar.gz"
}

stage_programs
stage_units_and_settings
stage_documents
make_tarball
make_debs
make_rpms
install -m 644 "$work/sbom.json" "$out/gradwire-$version.cdx.json"
(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum > SHA256SUMS)
