"""Measurements and trials of the whole product; nothing of the product needs them."""
