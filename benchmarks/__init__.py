"""What this project costs, measured side by side with others; see docs/benchmarks.md."""

import os

# One thread of BLAS, as `secureps` sets it for its processes: two of them that share a core wait
# for one another, and their waiting counts as time. Before numpy, which reads it when imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
