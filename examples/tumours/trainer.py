"""A hospital's trainer of secureps."""

from tumours import Net, load_data

import secureps as ps


def make(settings):
    records, held_out = load_data(settings["partition"])
    return ps.TorchTrainer(Net, records, held_out)


if __name__ == "__main__":
    ps.run_client(make)
