# In the guest: the verbs driver, both ends on one device.
. /bin/device.sh
drivers over_verbs:: --test-threads=1 --nocapture || exit
verbs_faults one_device:: --test-threads=1 --nocapture
