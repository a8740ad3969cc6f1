"""Chaos with real processes: their faults are those of machines, networks and disks."""
