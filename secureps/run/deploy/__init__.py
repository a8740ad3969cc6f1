"""Manifests for Kubernetes and batch files for Slurm, which run a federation on clusters."""
