# In the guest: a short training over each transport, which must all end with the same weights.
. /bin/device.sh
for transport in verbs tcp shm; do
    gradwire launch --servers 2 --workers 2 --transport $transport -- \
        gradwire-worker train --data /bin/digits.csv --epochs 2 > /tmp/$transport.log 2>&1
    echo "$transport ended with $?"
    grep -E "why=|weights_sha256" /tmp/$transport.log || cat /tmp/$transport.log
done
