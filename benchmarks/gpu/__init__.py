"""What a GPU takes for the steps of a client, beside one core of the same machine, in one run.

    python -m benchmarks.gpu [--device cuda] [--seconds 400] [--out results/gpu.json]

It prints each section as a table, and writes what it has after each. `--device cpu` plays all of
it in a tiny form, which says nothing of speed.
"""
