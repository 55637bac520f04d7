# In the guest: the doctor finds the software RDMA device, writes over it between two processes, and names what stands
# against it: no device, a link that is down, too little memory that may be pinned. Says of each how it went, and at the
# end how many passed.
# boot.sh brings it the program gradwire, and device.sh.
passed=0 failed=0
# expect NAME CODE PATTERN...: what the last doctor said and ended with.
expect() {
    name=$1 wanted=$2
    shift 2
    verdict=ok
    [ "$code" = "$wanted" ] || verdict="FAILED: exit code $code, not $wanted"
    for pattern in "$@"; do
        grep -q -- "$pattern" /tmp/said || verdict="FAILED: $pattern is missing"
    done
    echo "doctor: $name ... $verdict"
    if [ "$verdict" = ok ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        cat /tmp/said
    fi
}
doctor() {
    gradwire doctor "$@" > /tmp/said 2>&1
    code=$?
}
# An ordinary user's: $1 KiB may be pinned.
doctor_of_user() {
    pinned=$1
    shift
    su -s /bin/sh nobody -c "ulimit -l $pinned; gradwire doctor $*" > /tmp/said 2>&1
    code=$?
}

doctor
expect "no device" 0 "^warn  verbs .*rdma link add" "^ok    libibverbs .*found at /"
doctor --transport verbs
expect "no device where it is required" 75 "^FAIL  verbs .*rdma link add"

. /bin/device.sh
mkdir -p /etc
echo 'root:x:0:0::/tmp:/bin/sh' > /etc/passwd
echo 'nobody:x:65534:65534::/tmp:/bin/sh' >> /etc/passwd
chmod 666 /dev/infiniband/*
chmod 1777 /tmp /dev/shm

library=$(find /lib /usr/lib -name libibverbs.so.1 | head -n 1)
mv "$library" "$library.away"
doctor
expect "a device and no library" 0 "^warn  verbs .*rxe0.*libibverbs cannot be loaded.*apt-get install libibverbs1"
doctor --transport verbs
expect "no library where a device is required" 75 "^FAIL  verbs .*rxe0.*libibverbs cannot be loaded"
mv "$library.away" "$library"

doctor
expect "the device, its address and why not the others" 0 "^ok    verbs .*rxe0, port 1 is up.*address 10.9.0.1" \
    "not used: fe80:.*of one link only" "^ok    verbs queue" "^ok    memlock .*no limit"
doctor --set verbs.device=mlx5_0
expect "a device that is not there" 0 "^warn  verbs .*there are rxe0"

gradwire doctor --listen 127.0.0.1:9094 --transport verbs > /tmp/listening 2>&1 &
until grep -q "listening on" /tmp/listening; do usleep 20000; done
doctor --peer 127.0.0.1:9094 --transport verbs
grep -A 6 "^peer" /tmp/said
expect "a write over the device between two processes" 0 "would use verbs" "  verbs  *yes "
doctor_of_user 64 --peer 127.0.0.1:9094 --transport verbs
expect "memory that may not be pinned" 75 "^FAIL  memlock .*64.0 KiB may be pinned.*LimitMEMLOCK=infinity" \
    "  verbs  *NO .*LimitMEMLOCK=infinity"
doctor_of_user 64
expect "the same where other transports are left" 0 "^warn  memlock .*64.0 KiB may be pinned.*a job uses shm"
doctor_of_user 65536
expect "enough for a start, tensors are another matter" 0 "^warn  memlock .*if more is used than is left"
doctor_of_user 8192
expect "a server makes its inbox smaller, and so runs" 0 "^warn  memlock .*inbox slots of the 16 set"
chmod 600 /dev/infiniband/*
doctor_of_user 65536
expect "a device that this user may not open" 0 "^warn  verbs .*let this user open the files in /dev/infiniband"
kill %1
wait %1
code=$?
cp /tmp/listening /tmp/said
expect "the listener ends when it is told to" 0 "visit of .*verbs works" "visit of .*verbs does not work"

ip link set d0 down
doctor --transport verbs
expect "a link that is down" 75 "^FAIL  verbs .*port 1 is down.*ip link set INTERFACE up"
ip link set d0 up
ip addr flush dev d0
doctor --transport verbs
expect "a device whose interface lost its address" 0 "^warn  verbs .*of one link only.*ip address add"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
