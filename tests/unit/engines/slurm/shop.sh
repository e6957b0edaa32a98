#!/bin/bash
# The job shop, made by persia VERSION. It holds no secret: each start makes its own keys.
#SBATCH --job-name=shop
#SBATCH --partition=cpu
#SBATCH --time=91
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=6
#SBATCH --mem=144570M
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@151
#SBATCH --account=ranking
#SBATCH --qos=long
#SBATCH --constraint=avx512
#SBATCH hetjob
#SBATCH --job-name=shop
#SBATCH --partition=gpu
#SBATCH --time=91
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=8192M
#SBATCH --gres=gpu:a100:4
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --account=ranking
#SBATCH --qos=long
#SBATCH --constraint=avx512

# What follows runs the coordinator, and starts these steps, in a part of the machines each; their input is the job's
# keys. NODE stands for a machine, ADDRESS for the coordinator's.
#   srun --het-group=0 --job-name=embedding-server-0 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=2 --mem=138650M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none HOME/venv/bin/persia launch-role embedding-server --index 0 --coordinator tcp://ADDRESS:PORT --key-file - --attached
#   srun --het-group=0 --job-name=embedding-server-1 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=2 --mem=138650M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none HOME/venv/bin/persia launch-role embedding-server --index 1 --coordinator tcp://ADDRESS:PORT --key-file - --attached
#   srun --het-group=0 --job-name=embedding-worker-0 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=1 --mem=2048M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none HOME/venv/bin/persia launch-role embedding-worker --index 0 --coordinator tcp://ADDRESS:PORT --key-file - --attached
#   srun --het-group=0 --job-name=embedding-worker-1 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=1 --mem=2048M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none HOME/venv/bin/persia launch-role embedding-worker --index 1 --coordinator tcp://ADDRESS:PORT --key-file - --attached
#   srun --het-group=0 --job-name=data-loader-0 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=2 --mem=2048M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none HOME/venv/bin/persia launch-role data-loader --index 0 --coordinator tcp://ADDRESS:PORT --key-file - --attached
#   srun --het-group=0 --job-name=data-loader-1 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=2 --mem=2048M --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none HOME/venv/bin/persia launch-role data-loader --index 1 --coordinator tcp://ADDRESS:PORT --key-file - --attached
#   srun --het-group=1 --job-name=nn-worker-0 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=8 --mem=4096M --gres=gpu:a100:2 --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none HOME/venv/bin/persia launch-role nn-worker --index 0 --coordinator tcp://ADDRESS:PORT --key-file - --cpus 0-7 --attached
#   srun --het-group=1 --job-name=nn-worker-1 --nodelist=NODE --nodes=1 --ntasks=1 --exact --cpus-per-task=8 --mem=4096M --gres=gpu:a100:2 --no-kill --kill-on-bad-exit=0 --immediate=60 --mpi=none HOME/venv/bin/persia launch-role nn-worker --index 1 --coordinator tcp://ADDRESS:PORT --key-file - --cpus 8-15 --attached

mkdir -p '/home/me/my runs/shop/driver' && exec >> '/home/me/my runs/shop/driver/driver.log' 2>&1
trap '' USR1  # nothing runs yet that could save; Persia lets it in again
module load python
source ~/venv/bin/activate
exec HOME/venv/bin/persia drive --scheduler slurm --run-dir '/home/me/my runs/shop' resume=auto << 'END_OF_CONFIGURATION'
…
END_OF_CONFIGURATION
