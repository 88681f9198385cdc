"""DLRM: a recommender whose features interact by the dot products of their vectors."""

from helpers.models._criteo.model import Recommender

# a dot product of two vectors of 128; 128 numbers and 351 products, padded to 480
MODEL = Recommender("DLRM", interaction=[128], width=480)
