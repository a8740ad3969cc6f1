"""A hospital's client of NVIDIA FLARE: its own loop, by the Client API."""

import nvflare.client as flare
from tumours import Net, load_data, test, train


def main() -> None:
    flare.init()
    records, held_out = load_data(int(flare.get_site_name().rpartition("-")[2]) - 1)
    model = Net()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        _, accuracy = test(model, held_out)
        train(model, records, epochs=2, lr=0.1)
        made = flare.FLModel(params=model.state_dict(), metrics={"accuracy": accuracy})
        flare.send(made)


if __name__ == "__main__":
    main()
