# In the guest: the paper's device interface over a software RDMA device, as tests and between two processes.
# boot.sh brings it the test program under the name machine, the example copy_between_processes, and device.sh.
. /bin/device.sh
machine --test-threads=1 --nocapture over_verbs || exit 1
passed=0
for driver in verbs tcp shm; do
    rm -f /tmp/endpoint
    # Its input ends with this script's sleep at the latest.
    sleep 60 | copy_between_processes lend 10.9.0.1:0 65536 --driver $driver > /tmp/endpoint &
    until [ -s /tmp/endpoint ]; do usleep 20000; done
    copy_between_processes copy 10.9.0.1:0 "$(cat /tmp/endpoint)" 65536 200 --driver $driver || exit 1
    passed=$((passed + 1))
done
echo "$passed passed, 0 failed"
