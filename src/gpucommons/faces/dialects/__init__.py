"""Metric vocabularies: each turns a Snapshot into metric families. Pure.

A metric's name leads to its file. The prefix selects the dialect: gpucommons_, nvshare_, xpushare_, ds01_, DCGM_, pod_
(vgpu), node_, cpu_ and gpu_ (node, or nodeexporter for a host metric of node_exporter). Within a dialect, the next
words select the module: gpucommons_owner_* is in gpucommons/owners.py.
"""
