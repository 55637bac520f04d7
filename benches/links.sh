#!/bin/bash
# Runs a Python program as one worker on each of two hosts with a slow link between them, with one server on each: network namespaces
# joined by a pair of interfaces, each of which sends no more than a rate (a token bucket). As root:
#   links.sh RATE PYTHON PROGRAM [arguments]        for example: links.sh 1gbit venv/bin/python bindings/python/benches/torch_gloo.py
# PYTHON needs the package gradwire; GRADWIRE_PROGRAMS is the directory of the programs, by default that of `gradwire` in the PATH.
set -euo pipefail
rate=$1
shift
gradwire=${GRADWIRE_PROGRAMS:+$GRADWIRE_PROGRAMS/}gradwire
scratch=$(mktemp -d)
names=("gw$$-0" "gw$$-1")
cleaned() {
    for name in "${names[@]}"; do ip netns del "$name" 2> /dev/null || true; done
    rm -rf "$scratch"
}
trap cleaned EXIT
for name in "${names[@]}"; do ip netns add "$name"; done
ip link add eth0 netns "${names[0]}" type veth peer name eth0 netns "${names[1]}"
for host in 0 1; do
    ip -n "${names[$host]}" addr add "10.99.0.$((host + 1))/24" dev eth0
    ip -n "${names[$host]}" link set lo up
    ip -n "${names[$host]}" link set eth0 up
    # A burst holds packets of 64 KiB, which a network card would cut by itself.
    ip netns exec "${names[$host]}" tc qdisc add dev eth0 root tbf rate "$rate" burst 512kb latency 100ms
    echo "10.99.0.$((host + 1)) slots=2" >> "$scratch/hosts"
done
# In place of ssh: its last arguments are the host and the command.
cat > "$scratch/enter" << 'ENTER'
#!/bin/bash
host=${*: -2:1}
ip netns exec "$LINKS-$((${host##*.} - 1))" bash -c "${*: -1}"
ENTER
chmod +x "$scratch/enter"
export LINKS=gw$$
ip netns exec "${names[0]}" "$gradwire" launch -n 2 --host-file "$scratch/hosts" --ssh "$scratch/enter" --host-ip 10.99.0.1 \
    --transport tcp --env MASTER_ADDR=10.99.0.1 --env MASTER_PORT=29601 --env GLOO_SOCKET_IFNAME=eth0 --env OMP_NUM_THREADS=1 -- "$@"
