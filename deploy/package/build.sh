#!/usr/bin/env bash
# Makes packages of programs that are built:
#
#   deploy/package/build.sh PROGRAMS OUT
#
# PROGRAMS is the directory with gradwire, gradwire-scheduler, gradwire-server and gradwire-worker. In OUT are then
# gradwire_VERSION_ARCH.deb, gradwire-VERSION-MACHINE-linux.tar.gz, gradwire-VERSION.cdx.json (what is in the programs: CycloneDX)
# and SHA256SUMS over all that lies there. The same programs give the same bytes: times are SOURCE_DATE_EPOCH, or the commit's.
# COMPRESSION is dpkg-deb's (xz), MAINTAINER whom the Debian package names. It compiles nothing, and installs nothing.
set -euo pipefail
export LC_ALL=C

[ $# -eq 2 ] || { echo "usage: deploy/package/build.sh PROGRAMS OUT" >&2; exit 2; }
programs=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
root=$(dirname "$(dirname "$here")")
names=(gradwire gradwire-scheduler gradwire-server gradwire-worker)
version=$("$programs/gradwire" --version | cut -d' ' -f2)
machine=$(uname -m)
architecture=$(dpkg --print-architecture 2>/dev/null || echo "$machine")
maintainer=${MAINTAINER:-The Gradwire authors <gradwire@localhost.invalid>}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage
documents=$stage/usr/share/doc/gradwire

# What runs, and what it says of itself. Names of functions stay: backtraces are of use.
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
    install -D -m 644 -t "$deploy/container" "$root/deploy/container/Dockerfile"
    install -D -m 644 -t "$documents/examples/digits" "$root"/examples/digits/{digits.csv,README.md}
    gzip -9nc "$root/CHANGELOG.md" > "$documents/CHANGELOG.md.gz"
    # Debian's own list says no more than that there is this version.
    printf 'gradwire (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s  %s\n' \
        "$version" "$maintainer" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n > "$documents/changelog.gz"
    # Which features they were built with, the programs say by what they are linked with.
    local features=()
    ! readelf -d "$programs/gradwire-server" | grep -q 'NEEDED.*libibverbs' || features=(gradwire-server/verbs)
    "$here/sbom.py" "$root" ${features[@]+"${features[@]}"} > "$work/sbom.json"
    install -m 644 "$work/sbom.json" "$documents/gradwire.cdx.json"
}

# What the programs are linked with, as Debian's packages.
depends() {
    local found
    mkdir -p "$work/control/debian"
    printf 'Source: gradwire\n\nPackage: gradwire\nArchitecture: any\n' > "$work/control/debian/control"
    found=$(cd "$work/control" && dpkg-shlibdeps -O "${names[@]/#/-e$stage/usr/bin/}" 2>/dev/null)
    printf '%s' "${found#shlibs:Depends=}"
}

make_deb() {
    local tree=$work/deb size
    cp -a "$stage" "$tree"
    install -D -m 644 "$here/debian/lintian-overrides" "$tree/usr/share/lintian/overrides/gradwire"
    install -d "$tree/DEBIAN"
    install -m 755 "$here"/debian/{postinst,prerm,postrm} "$tree/DEBIAN"
    (cd "$tree" && find etc -type f | sort | sed 's|^|/|') > "$tree/DEBIAN/conffiles"
    (cd "$tree" && find usr -type f | sort | xargs md5sum) > "$tree/DEBIAN/md5sums"
    size=$(du -k -s --apparent-size --exclude=DEBIAN "$tree" | cut -f1)
    sed -e "s|@VERSION@|$version|; s|@ARCHITECTURE@|$architecture|; s|@MAINTAINER@|$maintainer|; s|@SIZE@|$size|" \
        -e "s#@DEPENDS@#$(depends)#" "$here/debian/control" > "$tree/DEBIAN/control"
    chmod -R u=rwX,go=rX "$tree"
    dpkg-deb --root-owner-group -Z"${COMPRESSION:-xz}" --build "$tree" "$out/gradwire_${version}_$architecture.deb" > /dev/null
}

# /usr without its name, and the settings: it runs from wherever it is unpacked.
make_tarball() {
    local name=gradwire-$version-$machine-linux
    cp -a "$stage/usr" "$work/$name"
    cp -a "$stage/etc" "$work/$name"
    install -m 644 "$root"/LICENSE-{APACHE,MIT} "$work/$name"
    chmod -R u=rwX,go=rX "$work/$name"
    tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$name" |
        gzip -n > "$out/$name.tar.gz"
}

stage_programs
stage_units_and_settings
stage_documents
if command -v dpkg-shlibdeps > /dev/null; then
    make_deb
else
    echo "package: no .deb, because dpkg-shlibdeps is not here: apt-get install dpkg-dev" >&2
fi
make_tarball
install -m 644 "$work/sbom.json" "$out/gradwire-$version.cdx.json"
(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum > SHA256SUMS)
