"""Models that `new` writes in a copy of the project, how they are served, and what they answer."""

from contextlib import contextmanager

import yaml

from tests.conftest import free_ports, wait_for

STAGES = ("export", "convert", "deploy", "perf_offline", "perf_online")
MAKING = tuple(f"--stage={stage}" for stage in STAGES[:3])
QUICK = {"measurement_seconds": 0.3, "compare_seconds": 2, "margin_of_error": 0.5}
QUICK |= {"request_count": 6, "pairs": 2, "distinct_rows": 4}
POINT = {"batch_sizes": [1], "concurrency": [2], "rates": []}
SMALL = {"hidden_size": 32, "intermediate_size": 64}
SMALL |= {"num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = SMALL | {"vocab_size": 200, "max_position_embeddings": 66, "pad_token_id": 0}
IMAGE = SMALL | {"image_size": 32, "patch_size": 8}
ARCHITECTURES = {
    "bert": ("BertForSequenceClassification", TEXT),
    "distilbert": (
        "DistilBertForTokenClassification",
        {"vocab_size": 200, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    ),
    "roberta": ("RobertaForSequenceClassification", TEXT),
    "modernbert": ("ModernBertForSequenceClassification", TEXT),
    "vit": ("ViTForImageClassification", IMAGE),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "image_size": 32},
    ),
    "convnext": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32},
    ),
    "swin": (
        "SwinForImageClassification",
        {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
        | {"image_size": 32, "patch_size": 4},
    ),
    "dinov2": ("Dinov2ForImageClassification", IMAGE),
    "segformer": (
        "SegformerForSemanticSegmentation",
        {"depths": [1] * 4, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 2, 2]}
        | {"decoder_hidden_size": 16, "image_size": 64},
    ),
}


def new(project, name, *arguments, keep=()):
    """Have `new` write a model, whose measurements are made quick; leave out experiments that are
    not kept, if any is.
    """
    answer = project.run("new", name, *arguments)
    assert answer.code == 0, answer.output
    quicken(project, name, *keep)
    return answer


def quicken(project, name, *kept):
    """Make the measurements of a new model quick, and keep some experiments, or all."""
    path = project.root / f"params/{name}.yaml"
    content = yaml.safe_load(path.read_text())
    section = content["models"][name]
    section["defaults"] |= QUICK
    every = section["experiments"].items()
    section["experiments"] = {e: own | POINT for e, own in every if e in kept or not kept}
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def run(project, names, *options):
    """Run models to a good end, by default all of their stages."""
    answer = project.run("run", *(f"params/{name}.yaml" for name in names), *options)
    assert answer.code == 0, answer.output
    return answer


def is_ready(url, name):
    import tritonclient.http as http

    try:
        return bool(http.InferenceServerClient(url).is_model_ready(name))
    except OSError:
        return False


@contextmanager
def served(project, command, name, port):
    """Start `serve`; yield the server's address once the model can be asked, and end it."""
    process, url = project.start(*command), f"127.0.0.1:{port}"
    try:
        wait_for(lambda: is_ready(url, name))
        yield url
    finally:
        process.send_signal(2)
        process.communicate(timeout=600)


@contextmanager
def serving(project, name):
    """Serve a deployed model as a user does; yield what asks it for arrays by name."""
    (port,) = free_ports(1)
    options = ("--model", name, "--experiment", "onnx-fp32", "--port", str(port))
    with served(project, ("serve", f"params/{name}.yaml", *options), name, port) as url:
        yield lambda arrays: asked(url, name, arrays)


def asked(url, name, arrays):
    import tritonclient.http as http
    from tritonclient.utils import np_to_triton_dtype

    tensors = [
        http.InferInput(key, [*a.shape], np_to_triton_dtype(a.dtype)).set_data_from_numpy(a)
        for key, a in arrays.items()
    ]
    return http.InferenceServerClient(url).infer(name, tensors).as_numpy


def saved(name, folder, **settings):
    """Save a tiny model of transformers with random weights, as its users do."""
    import torch
    import transformers

    torch.manual_seed(0)
    head, fields = ARCHITECTURES[name]
    network_class = getattr(transformers, head)
    config = network_class.config_class(**{"num_labels": 5, **fields, **settings})
    network_class(config).eval().save_pretrained(folder)
    return folder


def with_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "film": 4, "a": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    return folder


def with_processor(folder):
    settings = '{"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}'
    (folder / "preprocessor_config.json").write_text(settings)
    return folder
