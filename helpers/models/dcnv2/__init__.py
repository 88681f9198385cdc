"""DCNv2: a recommender whose features interact in three low-rank cross layers."""

from helpers.models._criteo.model import Recommender

# of 27 vectors of 128, each layer first projects to 512 and then back
MODEL = Recommender("DCNv2", interaction=[3456, 512] * 3, width=3456)
