"""Replicas that come and go under stock PyTorch."""
