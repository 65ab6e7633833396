"""Background work: the Celery app, its sweeps, and the simulated fleet."""
