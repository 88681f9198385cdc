"""Free ports of 127.0.0.1 for a server that is about to start."""

from socket import SO_REUSEADDR, SOL_SOCKET, socket

from helpers.errors import ServerError


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of 127.0.0.1 that nothing listens on."""
    sockets = [socket() for _ in range(count)]  # all open at once, so that the ports differ
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def require_free(port: int) -> int:
    """Return `port` if nothing listens on it; raise `ServerError` otherwise."""
    with socket() as probe:
        probe.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServerError(
                f"port {port} of 127.0.0.1 is taken ({error.strerror}): give another, or none"
            ) from None
    return port
