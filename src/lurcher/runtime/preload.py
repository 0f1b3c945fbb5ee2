"""What the forkserver imports once, so that a rank starts in milliseconds.

torch._dynamo and torch.optim are among them: torch imports them lazily at the first use of an optimizer, which takes
seconds with eight ranks and would look like a fail-slow.
"""

import torch
import torch._dynamo
import torch.distributed
import torch.optim

import lurcher.runtime.worker  # noqa: F401

torch.set_num_threads(1)
