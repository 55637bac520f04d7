#!/bin/sh
# After the files have been installed: creates the daemons' user and their directory, and notifies systemd. It starts nothing.
set -e
systemd-sysusers gradwire.conf
systemd-tmpfiles --create gradwire.conf
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
