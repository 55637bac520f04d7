# In the guest: real daemons over the device.
. /bin/device.sh
process rdma_train:: --test-threads=1 --nocapture --skip two_devices:: || exit
process --test-threads=1 placement::the_same placement::each_placement placement::a_dynamic || exit
process --test-threads=1 buffers::over_verbs
