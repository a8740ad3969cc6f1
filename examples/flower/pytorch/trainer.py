"""pytorchexample: The app's model and records, trained by secureps in place of its ClientApp."""

from pytorchexample.task import Net, load_data

import secureps as ps


def make(settings):
    """Makes one data holder."""
    batches = load_data(settings["partition"], settings["partitions"], batch_size=32)
    return ps.TorchTrainer(Net, *batches)


if __name__ == "__main__":
    ps.run_client(make)
