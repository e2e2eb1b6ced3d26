"""What all rules share.

On a cluster, what takes seconds stays with the driver (`localrule`); runs and datasets are submitted.
Rules name envs/conda.yaml as the software that they need. The environment that Snakemake runs in has it too, so that
`--sdm conda` is never needed.
"""


wildcard_constraints:
    # A campaign measures a machine's runs again, in a folder of its own: local+night_2.
    machine=r"[a-z][a-z0-9_]*(\+[a-z][a-z0-9_]*)?",
    scale="mini|node|paper",
    study="[a-z][a-z0-9_]*",
    figure="[a-z][a-z0-9_]*",
    table="[a-z][a-z0-9_]*",
    run="[A-Za-z0-9_.]+-[0-9a-f]{12}",
    dataset="[A-Za-z0-9_.]+-[0-9a-f]{12}",
