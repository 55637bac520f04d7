# In the guest: real daemons over the device, one test of each invariant; train.sh and calls.sh have all tests (slow tier).
. /bin/device.sh
process --ignored --test-threads=1 --nocapture rdma_train::several_queues rdma_train::whoever_is_killed \
    rdma_train::a_limit_of_pinned || exit
process --ignored --test-threads=1 placement::over_verbs::each_placement || exit
process --ignored --test-threads=1 calls::over_verbs::every_size
