"""TF-TRT: a SavedModel in which TensorRT runs what it can, and TensorFlow the rest.

It is made in NVIDIA's TensorFlow image of the server's release, as today's TensorFlow has no
TensorRT, and loaded by Triton's TensorFlow backend alone.
"""

from helpers.formats import tf_savedmodel, trt

FILE = tf_savedmodel.FILE
SOURCES = ("tf-savedmodel",)
PRECISIONS = {"gpu": ("fp16",)}
RUNTIME = ("tensorflow",)
DISPLAY_NAMES = ("TensorFlow", "TensorFlow-TensorRT")
DEPENDS_ON = ("max_batch_size",)
IMAGE = "nvcr.io/nvidia/tensorflow:{release}-tf2-py3"
load = trt.load
make = trt.make
describe, asks = tf_savedmodel.describe, trt.limits
