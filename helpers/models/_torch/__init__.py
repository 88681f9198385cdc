"""What the models that are built with PyTorch share."""
