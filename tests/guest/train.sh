# In the guest: real daemons over the device.
. /bin/device.sh
process --ignored rdma_train:: --test-threads=1 --nocapture --skip two_devices:: || exit
process --ignored --test-threads=1 placement::over_verbs || exit
process --ignored --test-threads=1 buffers::over_verbs
