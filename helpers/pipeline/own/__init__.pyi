from .creation import create as create
from .inputs import NewOptions as NewOptions
