# For scripts in the guest: two software RDMA devices with a wire between them that can lose packets (a veth pair). Both addresses
# are this machine's, so policy routes take packets over the wire, by the address they come from; two namespaces would
# not do, as the provider listens in the first one only.

# The shell would take busybox's own, which knows less.
ip=/bin/ip
for side in 0:1 1:0; do
    here=${side%:*} there=${side#*:}
    [ "$here" = 1 ] || $ip link add v0 mtu 4200 type veth peer name v1 mtu 4200
    $ip addr add "10.1.0.1$here/24" dev "v$here"
    $ip link set "v$here" up
    echo 1 > "/proc/sys/net/ipv4/conf/v$here/accept_local"
    echo 0 > "/proc/sys/net/ipv4/conf/v$here/rp_filter"
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
# What comes in over the wire is for this machine, as is everything that no rule here takes.
$ip rule add pref 100 lookup local
$ip rule del pref 0
for side in 0:1 1:0; do
    here=${side%:*} there=${side#*:}
    $ip rule add pref "1$here" iif "v$here" lookup local
    $ip rule add pref "2$here" from "10.1.0.1$here" to "10.1.0.1$there" lookup "20$here"
    $ip route add "10.1.0.1$there/32" dev "v$here" src "10.1.0.1$here" table "20$here"
    $ip neigh replace "10.1.0.1$there" lladdr "$(cat "/sys/class/net/v$there/address")" dev "v$here" nud permanent
    rdma link add "rxe$here" type rxe netdev "v$here"
done
