"""loraexample: A Flower app that trains low-rank adapters (LoRA) of a frozen base."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from loraexample.task import get_adapters, get_model, load_data, set_adapters
from loraexample.task import test as test_fn
from loraexample.task import train as train_fn

# Flower ClientApp
app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the adapters on local data."""
    # Load the base, and the received adapters on it
    model = get_model(context.run_config["rank"])
    set_adapters(model, msg.content["arrays"].to_torch_state_dict())

    # Load the data
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    data, _ = load_data(partition_id, num_partitions)

    # Call the training function
    train_loss = train_fn(
        model,
        data,
        context.run_config["local-epochs"],
        msg.content["config"]["lr"],
        context.run_config["batch-size"],
    )

    # Construct and return reply Message
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord(get_adapters(model)), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the adapters on local data."""
    # Load the base, and the received adapters on it
    model = get_model(context.run_config["rank"])
    set_adapters(model, msg.content["arrays"].to_torch_state_dict())

    # Load the data
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    _, data = load_data(partition_id, num_partitions)

    # Construct and return reply Message
    loss, accuracy = test_fn(model, data)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data[1])}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
