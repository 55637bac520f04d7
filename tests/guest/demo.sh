# In the guest: the demo over a software RDMA device.
. /bin/device.sh
gradwire launch --servers "${SERVERS:-2}" --workers "${WORKERS:-2}" --transport verbs -- \
    gradwire-worker train --data /bin/digits.csv $TRAIN
