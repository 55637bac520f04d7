#!/usr/bin/env bash
# Boots the guest of base.sh with more programs and files (see bring.sh) and runs a script in it. Its output is the guest's. Its exit
# code is the script's, or 124 if the guest did not end in time.
# boot.sh [-c CPUS] [-m MIB] [-t SECONDS] [-e 'NAME=VALUE ...'] FOLDER SCRIPT [FILE...]
set -euo pipefail
cpus=2 mib=1024 seconds=120 variables=
while getopts c:m:t:e: option; do
    case $option in
        c) cpus=$OPTARG ;;
        m) mib=$OPTARG ;;
        t) seconds=$OPTARG ;;
        e) variables=$OPTARG ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
base=$1 script=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/root"
"$(dirname "$0")/bring.sh" "$work/root" "$@"
{ echo "$variables"; cat "$script"; } > "$work/root/run.sh"
cp "$(dirname "$0")"/{device,wire}.sh "$work/root/bin/"
# The kernel unpacks archives one after the other.
(cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1) | cat "$base/base.cpio.gz" - > "$work/all.cpio.gz"
# Emulated (tcg) in any case: stock kernels do not boot under every host's kvm.
# no_timer_check: on a busy host the kernel would take a late first tick for a broken timer, and panic.
# The rest is speed, a tenth of the time: an emulated processor executes newer vector instructions more slowly than older ones, and nobody
# in the guest has to be kept from another one's secrets.
timeout "$seconds" qemu-system-x86_64 -M q35 -accel tcg -cpu Nehalem,+rdrand -smp "$cpus" -m "$mib" -nographic -no-reboot \
    -net none -kernel "$base/vmlinuz" -initrd "$work/all.cpio.gz" \
    -append "console=ttyS0 quiet panic=-1 random.trust_cpu=1 no_timer_check nokaslr mitigations=off init_on_alloc=0 audit=0 apparmor=0" < /dev/null | stdbuf -oL tr -d '\r' | tee "$work/log" || {
    echo "guest: not done within $seconds s" >&2
    exit 124
}
code=$(sed -n 's/^guest: exit \([0-9]*\)$/\1/p' "$work/log" | tail -n 1)
exit "${code:-125}"
