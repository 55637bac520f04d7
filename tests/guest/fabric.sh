# In the guest: the verbs driver, both ends on one device; then the paper's device interface, as tests and between two
# processes.
. /bin/device.sh
drivers --ignored over_verbs --skip ::child --test-threads=1 --nocapture || exit
verbs_faults --ignored one_device:: --test-threads=1 --nocapture || exit
verbs_shared --ignored --test-threads=1 --nocapture || exit
machine --ignored --test-threads=1 --nocapture over_verbs || exit
# Beyond loopback machines want to know each other.
MACHINE_SECRET=$(cat /proc/sys/kernel/random/uuid)
export MACHINE_SECRET
passed=0
for driver in verbs tcp shm; do
    rm -f /tmp/endpoint
    # Its input ends with this script's sleep at the latest.
    sleep 60 | copy_between_processes lend 10.9.0.1:0 65536 --driver $driver > /tmp/endpoint &
    until [ -s /tmp/endpoint ]; do usleep 20000; done
    copy_between_processes copy 10.9.0.1:0 "$(cat /tmp/endpoint)" 65536 200 --driver $driver || exit
    passed=$((passed + 1))
done
echo "$passed passed, 0 failed"
