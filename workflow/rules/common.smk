"""What all rules share.

Rules name the conda environment of envs/conda.yaml; it is used only with `--software-deployment-method conda`.
"""


wildcard_constraints:
    machine="[a-z][a-z0-9_]*",
    scale="mini|node|paper",
    study="[a-z][a-z0-9_]*",
    figure="[a-z][a-z0-9_]*",
    table="[a-z][a-z0-9_]*",
    run="[A-Za-z0-9_.]+-[0-9a-f]{12}",
    dataset="[A-Za-z0-9_.]+-[0-9a-f]{12}",
