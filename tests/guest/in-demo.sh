# In the guest: the demo over the device. What it drew comes back between two lines of its own.
. /bin/device.sh
gradwire launch --servers "$SERVERS" --workers "$WORKERS" --transport verbs -- \
    gradwire-worker train --data "$DATA" --plot /tmp/loss.svg $TRAIN || exit
echo "== loss.svg"
cat /tmp/loss.svg
echo "== end"
