"""The torture of a whole site, and the checker that decides whether it kept its promises.

`history` is what the clients wrote down, `final` what the store holds in the end; `checker` holds
the two against each other and needs neither Django nor a server. `trial` makes a site, works on it
with `load`, harms it with `faults` and `proxy`, and asks the checker. docs/proof.md has figures.
"""
