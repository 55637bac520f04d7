# In the guest: the verbs driver over a software RDMA device of the kernel's, both ends on the one device.
ip link add d0 type dummy
ip addr add 10.9.0.1/24 dev d0
ip link set d0 up
rdma link add rxe0 type rxe netdev d0
drivers over_verbs:: --test-threads=1 --nocapture || exit
verbs_faults one_device:: --test-threads=1 --nocapture
