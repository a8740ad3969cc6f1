"""What a GPU takes for the steps of a client, beside one core of the same machine, in one run.

    python -m benchmarks.gpu [--device cuda] [--seconds 400] [--out results/gpu.json]
    python -m benchmarks.gpu.page [results/gpu.json] [--publish]

The first measures, section by section, and writes what it has after each; the second draws the
tables and the picture of `docs/gpu.md` of it. `--device cpu` plays all of it in a tiny form, which
says nothing of speed.
"""
