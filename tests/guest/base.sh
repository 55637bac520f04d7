#!/usr/bin/env bash
# Makes what every boot of the guest shares, once: the stock kernel with its RDMA modules, and an archive with
# busybox, the modules, the RDMA tools and the software provider (rdma_rxe, a real kernel RDMA device).
# base.sh FOLDER: leaves FOLDER/vmlinuz and FOLDER/base.cpio.gz.
set -euo pipefail
out=$(realpath -m "$1")
mkdir -p "$out"
fail() { echo "guest: $*" >&2; exit 1; }

for program in busybox cpio depmod zstd rdma ip tc ibv_devinfo ib_write_bw ib_write_lat; do
    command -v "$program" >/dev/null || fail "$program is missing (deploy/bootstrap.sh guest installs it)"
done
# The -cloud kernel has no rdma_rxe, so the generic one, taken apart and not installed.
newest() {
    apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ { print $2; exit }' || true
}
package=$(newest)
version=${package#linux-image-}
# Made again for another kernel, and when these scripts change.
stamp="$version $(cat "$(dirname "$0")"/{base,bring,init}.sh | cksum)"
if [ -f "$out/base.cpio.gz" ] && [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch() {
    package=$(newest)
    [ -n "$package" ] && (cd "$work" && apt-get download -qq "$package" >/dev/null 2>&1)
}
update() {
    if [ "$(id -u)" -eq 0 ]; then apt-get update -q >&2; else sudo -n apt-get update -q >&2; fi
}
# The package lists of a fresh image are missing or old.
fetch || { update && fetch; } || fail "apt cannot download a kernel (${package:-linux-image-amd64}); apt-get update?"
version=${package#linux-image-}
stamp="$version ${stamp#* }"
dpkg-deb -x "$work"/"$package"_*.deb "$work/kernel"
depmod -b "$work/kernel" "$version"

root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp,run,modules,etc/libibverbs.d,usr/lib/x86_64-linux-gnu/libibverbs}
cp /bin/busybox "$root/bin/"
for applet in $("$root/bin/busybox" --list); do
    [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
done

# In the order in which they need each other; rdma_rxe fails without crc32_generic.
number=100
for module in crc32_generic ib_uverbs rdma_ucm rdma_rxe dummy veth sch_netem; do
    modprobe -d "$work/kernel" -S "$version" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
    number=$((number + 1))
    name=$number-$(basename "$file")
    case $file in
        *.zst) zstd -dqc "$file" > "$root/modules/${name%.zst}" ;;
        *.xz) xz -dc "$file" > "$root/modules/${name%.xz}" ;;
        *) cp "$file" "$root/modules/$name" ;;
    esac
done

# Programs and the provider with the libraries they are linked to.
provider=$(ls /usr/lib/x86_64-linux-gnu/libibverbs/librxe*.so | head -n 1)
cp -L "$provider" "$root/usr/lib/x86_64-linux-gnu/libibverbs/"
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
"$(dirname "$0")/bring.sh" "$root" "$provider" "$(command -v rdma)" "$(command -v ip)" "$(command -v tc)" \
    "$(command -v ibv_devinfo)" "$(command -v ib_write_bw)" "$(command -v ib_write_lat)"
rm -f "$root/bin/$(basename "$provider")"
cp "$(dirname "$0")/init.sh" "$root/init"
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1 > "$work/base.cpio.gz")
cp "$work/kernel/boot/vmlinuz-$version" "$out/vmlinuz"
mv "$work/base.cpio.gz" "$out/base.cpio.gz"
echo "$stamp" > "$out/stamp"
