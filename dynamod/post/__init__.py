"""How mail travels between processes: frames over unix sockets now, over NATS between nodes later."""
