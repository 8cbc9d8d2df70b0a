"""Model folders on disk: where they come from, what they say, which tensors they hold.

Nothing here imports torch until tensors are asked for, so that a router can use all of it.
"""
