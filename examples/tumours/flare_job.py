"""The job of FLARE that plays flare_client.py: FedAvg of five hospitals, in its simulator."""

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from tumours import HOSPITALS, Net

if __name__ == "__main__":
    recipe = FedAvgRecipe(
        name="tumours",
        model=Net(),
        min_clients=HOSPITALS,
        num_rounds=5,
        train_script="flare_client.py",
    )
    print(recipe.execute(SimEnv(num_clients=HOSPITALS)).get_result())
