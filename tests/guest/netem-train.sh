# In the guest: real daemons over two devices with a wire between them that can lose packets.
. /bin/wire.sh
process --ignored rdma_train::two_devices:: --test-threads=1 --nocapture
