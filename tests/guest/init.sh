#!/bin/sh
# The guest's first process: brings up a software RDMA device (or what the script asks for), runs /run.sh, says
# how it ended, and powers off.
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
for module in /modules/*.ko; do
    insmod "$module" || echo "guest: insmod $module failed"
done
ip link set lo up
ulimit -l unlimited
cd /tmp
sh /run.sh
echo "guest: exit $?"
sync
poweroff -f
