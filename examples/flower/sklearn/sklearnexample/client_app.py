"""sklearnexample: A Flower / scikit-learn app."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearnexample.task import (
    UNIQUE_LABELS,
    create_model,
    get_model_params,
    load_data,
    set_model_params,
)

# Flower ClientApp
app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    # Create the model and apply the received parameters
    model = create_model(context.run_config["penalty"], context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())

    # Load the data
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    x_train, y_train, _, _ = load_data(partition_id, num_partitions)

    # Train; a few local epochs need not converge
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x_train, y_train)

    # Construct and return reply Message
    train_loss = log_loss(y_train, model.predict_proba(x_train), labels=UNIQUE_LABELS)
    metrics = {"train_logloss": float(train_loss), "num-examples": len(x_train)}
    model_record = ArrayRecord(get_model_params(model))
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    # Create the model and apply the received parameters
    model = create_model(context.run_config["penalty"], context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())

    # Load the data
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    _, _, x_test, y_test = load_data(partition_id, num_partitions)

    # Construct and return reply Message
    test_loss = log_loss(y_test, model.predict_proba(x_test), labels=UNIQUE_LABELS)
    metrics = {
        "test_logloss": float(test_loss),
        "accuracy": float(model.score(x_test, y_test)),
        "num-examples": len(x_test),
    }
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
