# In the guest: the verbs driver over two devices with a wire between them that can lose packets.
. /bin/wire.sh
verbs_faults --ignored two_devices:: --test-threads=1 --nocapture
