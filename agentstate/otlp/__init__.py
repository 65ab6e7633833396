"""OpenTelemetry's traces in and out: spans of agents become runs and events, runs become spans.

- `encoding.py`: what is sent over OTLP/HTTP, protobuf or JSON, and spans as plain data;
- `genai.py`: what a span of the GenAI conventions says, as events of ours;
- `taking.py`: a batch of spans into the store; `ending.py`: runs whose trace has gone quiet;
- `telling.py`: a run as spans.

Why it is so: docs/decisions/0054-opentelemetry.md. How to use it:
docs/integrations/opentelemetry.md.
"""
