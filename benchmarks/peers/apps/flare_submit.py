"""Submits a job to NVIDIA FLARE once as many clients are there as it waits for."""

from __future__ import annotations

import sys
import time

from nvflare.fuel.flare_api.flare_api import new_secure_session

from benchmarks.peers.apps import vectors


def main(user: str, kit: str, job: str) -> None:
    session = new_secure_session(user, kit, timeout=60.0)
    while len(session.get_system_info().client_info) < vectors.clients():
        time.sleep(0.5)
    print("submitted", session.submit_job(job), flush=True)
    session.close()


if __name__ == "__main__":
    main(*sys.argv[1:4])
