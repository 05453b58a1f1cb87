"""This node's pods, from the API server's watch or from the kubelet. Needs to list and watch pods, no more."""
