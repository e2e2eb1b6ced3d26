#!/bin/bash
# The driver as a job of one core, for sites whose login nodes end long processes: qsub profiles/pbs/driver.sh
#PBS -l select=1:ncpus=1:mem=4gb -l walltime=24:00:00 -j oe
cd "$PBS_O_WORKDIR" && . .venv/bin/activate
# Requeued after its node died: the note of the driver that died there counts for ten minutes.
qstat -f "$PBS_JOBID" | grep -q "run_count = 1$" || while [ "$SECONDS" -lt 700 ] && [ -n "$(find .scalestudy/driver.json -size +0 -mmin -11 2>/dev/null)" ]; do sleep 30; done
# TERM, ten minutes before the walltime: the driver exits and its jobs continue. Its successor adopts them.
timeout --signal=TERM "${DRIVER_TIME:-$((85800 - SECONDS))s}" snakemake --profile profiles/pbs all
status=$?
[ "$status" = 124 ] && exec qsub profiles/pbs/driver.sh
exit "$status"
