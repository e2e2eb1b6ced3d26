"""`scalestudy doctor`: whether a site has what the runs need, and the files that describe a new one.

`examine.py` collects what the scheduler says (`facts/`) and what probes find on nodes (`probe_job.py` submits them as
`probe_request.py` asks, `on_node.py` starts `probe.py` on each). `findings.py` judges nodes, `compare_site.py` the files,
`gpu_support.py` torch. `write_site.py` and `write_machine.py` write a profile and a machine file.
"""
