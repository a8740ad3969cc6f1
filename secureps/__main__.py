"""`python -m secureps`: the command line."""

from __future__ import annotations

from secureps.run.cli import main

if __name__ == "__main__":
    main()
