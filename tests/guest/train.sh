# In the guest: real daemons over the device.
. /bin/device.sh
rdma_train --test-threads=1 --nocapture
