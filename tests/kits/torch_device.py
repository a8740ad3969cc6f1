"""The device on which updates are rotated in tests: SECUREPS_TEST_DEVICE, or else the CPU."""

import os

import torch

DEVICE = torch.empty(0, device=os.environ.get("SECUREPS_TEST_DEVICE", "cpu")).device
"""With its number, if it has one."""
