"""The embedded server's extension of Triton's `triton_python_backend_utils.py` for numpy 2.

The bindings of release 24.10 were built for numpy 1. As numpy 2 has another layout of a dtype, they
read every array as an empty one. So this module passes tensors by DLPack, and a model's calls of
`as_numpy()` and `Tensor(name, array)` work unchanged. DLPack has no type for text (BYTES).
"""

import ctypes

import c_python_backend_utils as bindings
import numpy as np

TEXT = "Text tensors need numpy 1. Set server.kind to docker or remote."
ON_CPU = (1, 0)  # kDLCPU and its number, as DLPack's header has them
set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = b"used_dltensor"
numpy1_array = bindings.Tensor.as_numpy


class Exported:
    """A tensor for `numpy.from_dlpack`, whose keywords Triton's own method does not know."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **_):
        return self.tensor.to_dlpack()

    def __dlpack_device__(self):
        return ON_CPU


def as_numpy(tensor):
    """Return a copy of a tensor as an array, as Triton's own method does."""
    if not tensor.is_cpu():
        return numpy1_array(tensor)  # which raises an error with the reason
    try:
        return np.from_dlpack(Exported(tensor)).copy()
    except Exception as error:
        raise TypeError(TEXT if "string" in str(error) else str(error)) from None


def new(cls, name, array):
    """Return a tensor that has an array's memory, or a copy where that is not one block."""
    array = np.require(array, requirements="CW")
    if array.dtype.kind in "OSU":
        raise TypeError(TEXT)
    capsule = array.__dlpack__()
    tensor = cls.from_dlpack(name, capsule)
    set_name(capsule, USED)  # Triton gives it another name, and numpy would complain of that
    return tensor


class Text:
    """Text that was received and cannot be read: Triton reshapes what it gets."""

    def reshape(self, shape):
        return np.empty(shape, dtype=object)


def deserialize_bytes_tensor(encoded):
    """Stand in for Triton's own function, which would fail in a way that ends the process."""
    return Text()


bindings.Tensor.as_numpy = as_numpy
bindings.Tensor.__new__ = staticmethod(new)
bindings.Tensor.__init__ = lambda tensor, name, array: None
