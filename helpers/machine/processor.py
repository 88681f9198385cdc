"""What this processor has in hardware, in words."""

from helpers.formats import PRODUCTS, instructions


def in_words() -> str:
    """Say of each precision whether it is in hardware."""
    found = {precision: ", ".join(instructions(precision)) for precision in PRODUCTS}
    named = [f"{precision} by {names}" for precision, names in found.items() if names]
    lacking = [precision for precision, names in found.items() if not names]
    if lacking:
        named.append(f"no {', '.join(lacking)} (not faster than fp32)")
    return "; ".join(named)
