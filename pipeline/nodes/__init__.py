"""The graph's nodes, each an async function over its ports."""
