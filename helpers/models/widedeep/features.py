"""The 29 features of the outbrain data as the network takes them: names, order and table sizes.

Source: the feature specification of NVIDIA's Wide & Deep (DeepLearningExamples, TensorFlow2).
"""

NUMERIC = (
    "document_id_document_id_promo_sim_categories",
    "document_id_document_id_promo_sim_topics",
    "document_id_document_id_promo_sim_entities",
    "document_id_promo_ctr",
    "publisher_id_promo_ctr",
    "source_id_promo_ctr",
    "document_id_promo_count",
    "publish_time_days_since_published",
    "ad_id_ctr",
    "advertiser_id_ctr",
    "campaign_id_ctr",
    "ad_id_count",
    "publish_time_promo_days_since_published",
)

# Each categorical feature -> (rows of its table, width of its embedding).
ONE_HOT = {
    "ad_id": (250_000, 128),
    "document_id": (300_000, 128),
    "platform": (4, 19),
    "document_id_promo": (100_000, 128),
    "campaign_id": (5_000, 128),
    "advertiser_id": (2_500, 64),
    "source_id": (4_000, 64),
    "geo_location": (2_500, 64),
    "geo_location_country": (300, 64),
    "geo_location_state": (2_000, 64),
    "publisher_id": (1_000, 64),
    "source_id_promo": (4_000, 64),
    "publisher_id_promo": (1_000, 64),
}
MULTI_HOT = {
    "topic_id_list": (350, 64),
    "entity_id_list": (10_000, 64),
    "category_id_list": (100, 64),
}
TABLES = ONE_HOT | MULTI_HOT
ROWS = {name: rows for name, (rows, _) in TABLES.items()}
HOTNESS = 3  # ids of a multi-hot feature
PAD = -1  # padding of a shorter list

NAMES = (*NUMERIC, *ONE_HOT, *MULTI_HOT)  # the order of the network's inputs
DISPLAY, CLICKED = "display_id", "clicked"  # the display of a row, and its label
