# In the guest: calls between real members over the device.
. /bin/device.sh
process_calls --test-threads=1 over_verbs
