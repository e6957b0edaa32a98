"""Jobs on Kubernetes: a plan becomes manifests, which kubectl gives to the cluster; nothing here talks to one."""
