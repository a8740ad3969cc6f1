"""numpyexample: A Flower / NumPy app."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from numpyexample.task import load_data
from numpyexample.task import test as test_fn
from numpyexample.task import train as train_fn

# Flower ClientApp
app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    # Load the data
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    data, _ = load_data(partition_id, num_partitions)

    # Train the received model
    model = msg.content["arrays"].to_numpy_ndarrays()
    epochs = context.run_config["local-epochs"]
    model = train_fn(model, data, epochs, msg.content["config"]["lr"])

    # Construct and return reply Message
    loss, _ = test_fn(model, data)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord(model), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    # Load the data
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    _, data = load_data(partition_id, num_partitions)

    # Evaluate the received model
    loss, accuracy = test_fn(msg.content["arrays"].to_numpy_ndarrays(), data)

    # Construct and return reply Message
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data[1])}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
