# In the guest: every role killed in turn, over the device. Its processor is emulated: silence and patience are long.
. /bin/device.sh
gradwire chaos --transport verbs --replicas "$REPLICAS" --kills "${KILLS:-20}" --epochs 6 --silence-ms 20000 --patience 180 \
    --out /tmp/chaos -- --data "$DATA"
