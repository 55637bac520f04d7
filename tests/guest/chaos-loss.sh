# In the guest: servers on one device and workers on another, with a wire between them that loses one packet in a hundred.
. /bin/wire.sh
# The shell would take busybox's own, which knows no netem.
tc=/bin/tc
for end in v0 v1; do
    $tc qdisc replace dev "$end" root netem loss 1% || exit
done
gradwire chaos --transport verbs --set-server verbs.device=rxe0 --set-worker verbs.device=rxe1 --kills 5 --epochs 2 \
    --silence-ms 20000 --patience 180 --out /tmp/chaos -- --data "$DATA" || exit
# A wire that lost nothing has shown nothing.
for end in v0 v1; do
    $tc -s qdisc show dev "$end"
    $tc -s qdisc show dev "$end" | grep -q 'dropped [1-9]' || { echo "$end has lost no packet"; exit 1; }
done
