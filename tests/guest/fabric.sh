# In the guest: the verbs driver's tests.
. /bin/device.sh
verbs_pair --test-threads=1 --nocapture
