#!/usr/bin/env bash
# A training job for Slurm, rendered by scripts/cluster/render.py:  sbatch THIS_FILE
# One task a host runs the launcher. Before the time limit all of them are asked to end, with a checkpoint; the same
# command submitted again goes on from there.
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=$cpus
#SBATCH --mem=$memory
#SBATCH --gres=$gres
#SBATCH --time=$time
#SBATCH --signal=TERM@180
#SBATCH --output=%x-%j.out
set -euo pipefail
cd $repository
export PATH=$repository/.venv/bin:"$$PATH"
MASTER=$$(scontrol show hostnames "$$SLURM_JOB_NODELIST" | sed -n 1p) # head would leave scontrol a closed pipe
PORT=$$((10000 + SLURM_JOB_ID * $starts % 50000)) # one for each start: jobs that share a host do not meet
export MASTER PORT
# Since Slurm 22.05 srun does not take --cpus-per-task from above by itself: all ranks would share one core.
# shellcheck disable=SC2016 # the variables are each host's own
srun --kill-on-bad-exit=1 --cpus-per-task="$$SLURM_CPUS_PER_TASK" bash -c 'exec python scripts/cluster/launch.py \
  --devices "$$1" --nodes "$$SLURM_JOB_NUM_NODES" --node-rank "$$SLURM_NODEID" --master "$$MASTER" --port "$$PORT" \
  --restarts "$$2" --log-dir "msrun_log/$$SLURM_JOB_ID/host-$$SLURM_NODEID" -- "$${@:3}"' launch $devices $restarts \
  $arguments
