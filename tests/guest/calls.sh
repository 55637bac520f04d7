# In the guest: calls between real members over the device.
. /bin/device.sh
process --ignored --test-threads=1 calls::over_verbs
