"""Measurements of MirrorMQ, and of RabbitMQ beside it where it is installed. See bench/README.md."""
