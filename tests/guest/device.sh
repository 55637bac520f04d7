# For scripts in the guest: a software RDMA device of the kernel's, on an interface of its own.
ip link add d0 type dummy
ip addr add 10.9.0.1/24 dev d0
ip link set d0 up
rdma link add rxe0 type rxe netdev d0
