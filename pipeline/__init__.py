"""How a session runs: the graph, its nodes, the pacer and the transports."""
