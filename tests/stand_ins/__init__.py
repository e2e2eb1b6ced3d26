"""Stand-ins for devices that a machine without them does not have; each says so in what it answers."""
