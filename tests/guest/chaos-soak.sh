# In the guest: some minutes of kills over the device, where registered bytes are the device's; what each process used may not
# grow. A training lasts longer than the minute that a life takes to be judged, on a quick machine too. What it drew comes between
# two lines of its own.
. /bin/device.sh
gradwire chaos --transport verbs --minutes "${MINUTES:-5}" --epochs 18 --silence-ms 20000 --patience 180 --out /tmp/chaos \
    -- --data "$DATA" > /tmp/said 2>&1
code=$?
cat /tmp/said
echo "== soak.svg"
cat /tmp/chaos/soak.svg
echo "== end"
exit "$code"
