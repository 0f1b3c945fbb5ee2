"""Carries plans out: a training engine on torch.distributed whose training is the same under every layout."""
