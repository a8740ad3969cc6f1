"""What runs a federation's parties on clusters: manifests for Kubernetes, batch files for Slurm."""
