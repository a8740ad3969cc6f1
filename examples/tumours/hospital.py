"""A hospital's client of secureps: its own loop, by a session."""

import sys

import torch
from tumours import Net, load_data, test, train

import secureps as ps


def main(server: str, name: str) -> str:
    records, held_out = load_data(int(name.rpartition("-")[2]))
    model = Net()

    def load(received: ps.Parameters) -> None:
        model.load_state_dict({key: torch.tensor(each) for key, each in received.items()})

    def judge(received: ps.Parameters) -> ps.EvaluateResult:
        load(received)
        loss, accuracy = test(model, held_out)
        return ps.EvaluateResult(loss, len(held_out[1]), {"accuracy": accuracy})

    session = ps.join(
        "kit",
        "plan.toml",
        server=server,
        name=name,
        initial=model.state_dict(),
        examples=len(records[1]),
        evaluate=judge,
    )
    with session:
        for received in session:
            load(received)
            train(model, records, epochs=2, lr=0.1)
            session.push(parameters=model.state_dict())
    return session.finished


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
