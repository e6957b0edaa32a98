#!/bin/bash
# The job shop, made by persia VERSION. It holds no secret: each start makes its own keys.
#SBATCH --job-name=shop
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=11988M
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@85

# What follows runs the coordinator, and starts these steps, in a part of the machines each; their input is the job's
# keys. NODE stands for a machine, ADDRESS for the coordinator's.
#   srun --job-name=embedding-server-0 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=2 --mem=2100M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none persia launch-role embedding-server --index 0 --coordinator tcp://ADDRESS:PORT --key-file - --attached
#   srun --job-name=embedding-worker-0 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=1 --mem=2048M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none persia launch-role embedding-worker --index 0 --coordinator tcp://ADDRESS:PORT --key-file - --attached
#   srun --job-name=data-loader-0 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=2 --mem=2048M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none persia launch-role data-loader --index 0 --coordinator tcp://ADDRESS:PORT --key-file - --attached
#   srun --job-name=nn-worker-0 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=2 --mem=4096M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none persia launch-role nn-worker --index 0 --coordinator tcp://ADDRESS:PORT --key-file - --attached

mkdir -p '/home/me/my runs/shop/driver' && exec >> '/home/me/my runs/shop/driver/driver.log' 2>&1
trap '' USR1  # nothing runs yet that could save; Persia lets it in again
exec persia drive --scheduler slurm --run-dir '/home/me/my runs/shop' resume=auto << 'END_OF_CONFIGURATION'
…
END_OF_CONFIGURATION
