#!/bin/sh
# Before the files are removed: stops the daemons. An upgrade (argument 1) stops nothing.
set -e
if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl stop gradwire.target gradwire-scheduler.service 'gradwire-server@*.service' 'gradwire-worker@*.service'
fi
