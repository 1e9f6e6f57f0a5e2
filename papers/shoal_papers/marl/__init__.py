"""The figures of Towards Efficient Multi-Agent Learning Systems."""
