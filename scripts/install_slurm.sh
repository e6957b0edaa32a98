#!/bin/sh
# Installs Slurm from the packages of Debian or Ubuntu, for the tests that run a cluster of their own (as root):
# controller, node daemon, commands. No daemon is left running: the tests start theirs, with a configuration of theirs.
set -eu
export DEBIAN_FRONTEND=noninteractive
# Where there is systemd or an init, the packages would start their daemons.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client
slurmctld -V
