# In the guest: Gradwire over the device beside perftest on it. The loopback address perftest's ends meet at is the
# device's own.
. /bin/device.sh
# 64 clients live in one process.
ulimit -n 65536
gradwire-bench rdma --address 10.9.0.1 $RDMA
