"""TF-TRT: a SavedModel in which TensorRT runs what it can, and TensorFlow the rest.

It is made and loaded by the TensorFlow of the server's release, and only by one that still has
TensorRT: in NVIDIA's TensorFlow image of that release, or here if such a TensorFlow is installed.
"""

from helpers.formats import tf_savedmodel, trt

FILE = tf_savedmodel.FILE
SOURCES = ("tf-savedmodel",)
PRECISIONS = {"gpu": ("fp16",)}
RUNTIME = ("tensorflow",)
SHOWN = ("TensorFlow", "TensorFlow-TensorRT")
BUILT_FOR = ("max_batch_size",)
IMAGE = "nvcr.io/nvidia/tensorflow:{release}-tf2-py3"
load = trt.load
make = trt.make
describe, asks = tf_savedmodel.describe, trt.limits
