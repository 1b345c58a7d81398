"""What a training or an analysis will take: operations, memory, bytes written, hours."""
