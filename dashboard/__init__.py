"""The operators' console: pages over the store, and the few commands that an operator gives."""
