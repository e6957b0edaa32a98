"""`cluster=slurm`: a job is a script for sbatch, and each replica a step that srun starts."""
