"""The API under input made from its own OpenAPI: `./run test-api-fuzz`, see docs/proof.md."""
