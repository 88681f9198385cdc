"""The steps of a request, as NVIDIA's documents of these models list them, and the columns with the
time of each.

Source: DeepLearningExamples, the section "Latency explanation" of each model's triton/README.md.
"""

NETWORK = "network_server_send_recv_ms"  # the average latency minus the other columns
STEPS = (  # step, what happens, columns of results.csv
    ("client send", "The client writes the request as a message.", ("client_send_ms",)),
    ("network", "The message goes to the server; on one host over loopback.", (NETWORK,)),
    ("server receive", "Triton reads the message.", (NETWORK,)),
    (
        "server queue",
        "The request waits for a free instance; online, also for others to fill the batch.",
        ("server_queue_ms",),
    ),
    (
        "server compute",
        "Triton collects the inputs, the backend runs the model, and Triton takes its outputs. "
        "With the Python backend, running includes the adapter around the runtime.",
        (
            "server_compute_input_ms",
            "server_compute_infer_ms",
            "server_compute_output_ms",
        ),
    ),
    ("server send", "Triton writes the response as a message.", (NETWORK,)),
    ("network", "The message goes back to the client.", (NETWORK,)),
    ("client receive", "The client reads the response.", ("client_recv_ms",)),
)


def table_rows() -> list[dict[str, str]]:
    """Return a row for each step: its place, what happens, and the columns with its time, as tables
    name them.
    """
    return [
        {
            "step": f"{place}. {name}",
            "what happens": what,
            "column": ", ".join(column.removesuffix("_ms").replace("_", " ") for column in columns),
        }
        for place, (name, what, columns) in enumerate(STEPS, 1)
    ]
