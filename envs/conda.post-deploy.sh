#!/usr/bin/env bash
# Snakemake runs this once in the environment that it has made from conda.yaml. The Snakefile says where the project lies.
set -eu
if [ -z "${SCALESTUDY_SOURCE:-}" ]; then
    echo "scalestudy: the workflow was not read from a clone of the project, so that it cannot be installed here" >&2
    echo "    clone it, or leave --sdm conda away and install scalestudy where snakemake is" >&2
    exit 2
fi
pip install --no-deps --no-build-isolation "$SCALESTUDY_SOURCE"
