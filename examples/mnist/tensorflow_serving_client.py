"""Classifies digits as a client of TensorFlow Serving would, and tells how well.

    python -m examples.mnist.tensorflow_serving_client HOST:PORT HTTP_HOST:PORT mnist-cnn mnist-mlp

Nothing of it knows Servax: it has the stubs of tensorflow-serving-api for gRPC, and JSON for HTTP.
`python -m tests.conformance.stubs` makes the stubs importable without TensorFlow.
"""

import itertools
import json
import urllib.request
from collections.abc import Callable

import click
import grpc
import numpy as np
from numpy.typing import NDArray
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from examples.mnist import data

Images = NDArray[np.uint8]
Logits = NDArray[np.float32]
Answer = tuple[Logits, int]
"""What a model gave, and the version that gave it."""


def over_grpc(channel: grpc.Channel, model: str) -> Callable[[Images], Answer]:
    """Return what asks a model over gRPC."""
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def predict(images: Images) -> Answer:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = model
        request.inputs["image"].CopyFrom(
            tensor_pb2.TensorProto(
                dtype=types_pb2.DT_UINT8,
                tensor_shape=tensor_shape_pb2.TensorShapeProto(
                    dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in images.shape]
                ),
                tensor_content=images.tobytes(),
            )
        )
        response = stub.Predict(request, timeout=60)
        logits = np.array(response.outputs["logits"].float_val, np.float32)
        return logits.reshape(len(images), -1), response.model_spec.version.value

    return predict


def over_rest(address: str, model: str) -> Callable[[Images], Answer]:
    """Return what asks a model over HTTP; its answers do not tell the version, its states do."""
    url = f"http://{address}/v1/models/{model}"

    def predict(images: Images) -> Answer:
        body = json.dumps({"instances": images.tolist()}).encode()
        with urllib.request.urlopen(f"{url}:predict", body, timeout=60) as response:
            logits = np.array(json.load(response)["predictions"], np.float32)
        with urllib.request.urlopen(url, timeout=60) as response:
            return logits, int(json.load(response)["model_version_status"][0]["version"])

    return predict


@click.command(context_settings={"show_default": True})
@click.argument("address", metavar="HOST:PORT")
@click.argument("http", metavar="HTTP_HOST:PORT")
@click.argument("models", nargs=-1, required=True, metavar="MODEL…")
@click.option("--count", default=128, help="How many images to send.")
@click.option("--batch", "batches", multiple=True, default=(1, 16, 100), help="Images at once.")
def main(
    address: str, http: str, models: tuple[str, ...], count: int, batches: tuple[int, ...]
) -> None:
    """Classify digits and print the accuracy."""
    _, digits = data.load()
    images, labels = digits.images[:count], digits.labels[:count]
    with grpc.insecure_channel(address) as channel:
        for model, batch in itertools.product(models, batches):
            for transport, predict in (
                ("gRPC", over_grpc(channel, model)),
                ("REST", over_rest(http, model)),
            ):
                answers = [predict(images[i : i + batch]) for i in range(0, count, batch)]
                best = np.concatenate([logits.argmax(-1) for logits, _ in answers])
                click.echo(
                    f"{model} over {transport}, {batch} at once: accuracy "
                    f"{(best == labels).mean():.4f} of {count} images, version {answers[-1][1]}"
                )


if __name__ == "__main__":
    main(prog_name="python -m examples.mnist.tensorflow_serving_client")
