#!/usr/bin/env bash
# Snakemake runs this once in the environment that it has made from conda.yaml. The Snakefile says where the project lies.
set -eu
if [ -z "${SCALESTUDY_SOURCE:-}" ]; then
    echo "scalestudy: the workflow does not come from a clone of scalestudy, so scalestudy cannot be installed here" >&2
    echo "    clone the repository, or omit --sdm conda and install scalestudy in Snakemake's environment" >&2
    exit 2
fi
pip install --no-deps --no-build-isolation "$SCALESTUDY_SOURCE"
