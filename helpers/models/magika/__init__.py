"""The model `magika`, from an ONNX file.

Written by `triton-notebooks new`, to be edited: `helpers/models/_own` says what each name means.
"""

from helpers.models._own import Axes, Own
from helpers.models._rounding import bounds


class Magika(Own):
    TITLE = "magika"
    FRAMEWORK = "onnxruntime"
    SOURCE = "onnx"
    INPUTS = (Axes("bytes", "int32", (2048,)),)
    OUTPUTS = (Axes("target_label", "float32", (214,)),)
    DECISION = "class"  # of the first output
    BOUNDS = bounds([683] * 3)  # terms of the sums on the longest path


MODEL = Magika()
