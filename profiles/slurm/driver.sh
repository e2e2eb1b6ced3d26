#!/bin/bash
# The driver as a job of one core, for sites whose login nodes end long processes: sbatch profiles/slurm/driver.sh all
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=1 --mem=4G --time=24:00:00
. .venv/bin/activate
# TERM, ten minutes before the walltime: the driver exits and its jobs continue. Its successor adopts them.
timeout --signal=TERM "${DRIVER_TIME:-1430m}" snakemake --profile profiles/slurm "$@"
status=$?
[ "$status" = 124 ] && exec sbatch profiles/slurm/driver.sh "$@"
exit "$status"
