# In the guest: real daemons over the device.
. /bin/device.sh
rdma_train --test-threads=1 --nocapture --skip two_devices:: || exit
process_placement --test-threads=1 the_same each_placement a_dynamic || exit
process_buffers --test-threads=1 over_verbs
