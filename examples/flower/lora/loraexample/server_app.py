"""loraexample: A Flower app that trains low-rank adapters (LoRA) of a frozen base."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from loraexample.task import get_adapters, get_model

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    # Read run config
    num_rounds = int(context.run_config["num-server-rounds"])
    fraction_evaluate = float(context.run_config["fraction-evaluate"])
    lr = float(context.run_config["learning-rate"])

    # Load the adapters to start from; every client has the base
    arrays = ArrayRecord(get_adapters(get_model(int(context.run_config["rank"]))))

    # Initialize FedAvg strategy
    strategy = FedAvg(fraction_evaluate=fraction_evaluate)

    # Start strategy, run FedAvg for `num_rounds`
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
    )

    # Save final adapters to disk
    torch.save(result.arrays.to_torch_state_dict(), "final_adapters.pt")
