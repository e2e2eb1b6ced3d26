#!/bin/bash
# The driver as a job of one core, for sites whose login nodes end long processes: qsub profiles/sge/driver.sh all
#$ -cwd -V -S /bin/bash -l h_rt=24:00:00
. .venv/bin/activate
# Requeued after its node died: the note of the driver that died there counts for ten minutes.
[ "${RESTARTED:-0}" = 0 ] || while [ "$SECONDS" -lt 700 ] && [ -n "$(find .scalestudy/driver.json -size +0 -mmin -11 2>/dev/null)" ]; do sleep 30; done
# TERM, ten minutes before the walltime: the driver exits and its jobs continue. Its successor adopts them.
timeout --signal=TERM "${DRIVER_TIME:-$((85800 - SECONDS))s}" snakemake --profile profiles/sge "$@"
status=$?
[ "$status" = 124 ] && exec qsub profiles/sge/driver.sh "$@"
exit "$status"
