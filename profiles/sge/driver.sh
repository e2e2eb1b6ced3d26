#!/bin/bash
# The driver as a job of one core, for sites whose login nodes end long processes: qsub profiles/sge/driver.sh all
#$ -cwd -V -S /bin/bash -l h_rt=24:00:00
. .venv/bin/activate
# TERM, ten minutes before the walltime: the driver exits and its jobs continue. Its successor adopts them.
timeout --signal=TERM "${DRIVER_TIME:-1430m}" snakemake --profile profiles/sge "$@"
status=$?
[ "$status" = 124 ] && exec qsub profiles/sge/driver.sh "$@"
exit "$status"
