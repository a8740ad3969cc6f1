"""sklearnexample: A Flower / scikit-learn app."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearnexample.task import create_model, get_model_params

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    # Read run config
    num_rounds = int(context.run_config["num-server-rounds"])
    fraction_evaluate = float(context.run_config["fraction-evaluate"])
    penalty = float(context.run_config["penalty"])

    # Load global model
    model = create_model(penalty, int(context.run_config["local-epochs"]))
    arrays = ArrayRecord(get_model_params(model))

    # Initialize FedAvg strategy
    strategy = FedAvg(fraction_evaluate=fraction_evaluate)

    # Start strategy, run FedAvg for `num_rounds`
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds)

    # Save final model to disk
    np.savez("final_model.npz", *result.arrays.to_numpy_ndarrays())
