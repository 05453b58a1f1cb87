"""What the agent is to Kubernetes besides a reader: a device plugin, and the reporter of GPU faults.

1. `shares.py` decides which shares of which GPUs are offered, preferred and given. Pure.
2. `messages.py` has the messages of the kubelet's device-plugin API, v1beta1. Pure.
3. `device_plugin.py` serves that API, and registers with the kubelet, again whenever the kubelet starts.
4. `node_faults.py` reports GPU faults as node condition, events and taint, and takes them back.

Kubernetes places the pods and keeps the state. Nothing here is imported unless it is switched on.
"""
